"""A curve as text, for the terminal and the model card."""

WIDTH, HEIGHT = 60, 10
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def chart(title: str, points: list[tuple[int, float]]) -> str:
    """Bars over the steps, with the largest and the smallest value at the side.

    Args:
        title: what the values are.
        points: steps, ascending, and finite values; several that fall on one column are averaged.
    """
    if not points:
        return f"{title}: no values yet"
    first, last = points[0][0], points[-1][0]
    columns: list[list[float]] = [[] for _ in range(min(WIDTH, len(points)))]
    for step, value in points:
        at = (step - first) * (len(columns) - 1) // max(last - first, 1)
        columns[at].append(value)
    heights = [sum(c) / len(c) if c else None for c in columns]
    known = [h for h in heights if h is not None]
    low, high = min(known), max(known)
    unit = (high - low) / (HEIGHT * 8 - 1) or 1.0
    # The smallest value still shows as one eighth.
    filled = [0 if h is None else 1 + round((h - low) / unit) for h in heights]
    # Of a constant, the lower label alone: that is where its bars are.
    labels = {HEIGHT - 1: f"{high:.4g}" if high > low else "", 0: f"{low:.4g}"}
    width = max(map(len, labels.values()))
    lines = [title]
    for row in reversed(range(HEIGHT)):
        bar = "".join(_EIGHTHS[min(max(f - 8 * row, 0), 8)] for f in filled)
        lines.append(f"{labels.get(row, ''):>{width}} │{bar.rstrip()}")
    lines.append(f"{'':>{width}} └ step {first} to {last}")
    return "\n".join(lines)
