"""Two plots as SVG: grouped bars and lines. Colours come from the page's style, by class."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from .summary import Spread

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 14, 46
# What a number of two decimals takes.
LABEL_WIDTH = 30


@dataclass(frozen=True)
class Series:
    """What bars or a line stand for.

    Attributes:
        name: in the legend and in tooltips.
        colour: the end of the name of a CSS class; ``f…`` fills with it, ``s…`` strokes.
    """

    name: str
    colour: str


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic scale from values to a range of the drawing.

    Attributes:
        low, high: the least and the greatest value.
        begin, end: where those are drawn.
        log: whether equal ratios, and not equal differences, are equally far apart.
    """

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.begin + (value - low) / ((high - low) or 1) * (self.end - self.begin)


def ticks(high: float, count: int = 5) -> list[float]:
    """Round numbers from 0 to at most ``high``, about ``count`` steps apart."""
    rough = (high or 1) / count
    scale = 10 ** math.floor(math.log10(rough))
    step = next(s * scale for s in (1, 2, 2.5, 5, 10) if s * scale >= rough * 0.999)
    return [i * step for i in range(math.floor(high / step + 1e-9) + 1)]


def bar_chart(
    groups: Sequence[str],
    series: Sequence[Series],
    values: Sequence[Sequence[Spread | None]],
    y_label: str,
    reference: float | None = None,
) -> str:
    """Grouped bars of medians with whiskers from the least to the greatest value.

    Args:
        groups: names along the x axis.
        series: the bars in a group.
        values: one row a group, one value a series.
        y_label: what the y axis shows.
        reference: a value that a dashed line marks.
    """
    highs = [v.high for row in values for v in row if v is not None]
    highest = max([*highs, reference or 0])
    marks = ticks(highest)
    slot = (WIDTH - LEFT - RIGHT) / len(groups)
    width = min(slot * 0.8 / len(series), 46)
    # Above the highest bar its value has room.
    y = Axis(0, highest, HEIGHT - BOTTOM, TOP + (14 if width >= LABEL_WIDTH else 34))
    parts = [_grid(y, marks, y_label)]
    for i, (group, row) in enumerate(zip(groups, values, strict=True)):
        middle = LEFT + (i + 0.5) * slot
        parts.append(_text(middle, HEIGHT - BOTTOM + 18, group, "middle"))
        for j, (bar, value) in enumerate(zip(series, row, strict=True)):
            if value is not None:
                x = middle + (j - len(series) / 2) * width
                parts.append(_bar(x, width, y, value, bar, group))
    if reference is not None:
        at = y(reference)
        parts.append(f'<path class="reference" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
    return _svg(parts, f"{y_label} by {', '.join(groups)}")


def _bar(x: float, width: float, y: Axis, value: Spread, series: Series, group: str) -> str:
    top, middle = y(value.median), x + width / 2
    title = f"{group}, {series.name}: {value.median:.2f} [{value.low:.2f}, {value.high:.2f}]"
    whisker = (
        f'<path class="whisker" d="M{middle:.1f} {y(value.low):.1f}V{y(value.high):.1f}"/>'
        if value.high > value.low
        else ""
    )
    return (
        f'<g><title>{escape(title)}</title><rect class="f{series.colour}" x="{x + 1:.1f}" '
        f'y="{top:.1f}" width="{width - 2:.1f}" height="{y.begin - top:.1f}" rx="2"/>{whisker}'
        f"{_value(middle, y(value.high) - 5, value.median, width)}</g>"
    )


def _value(x: float, y: float, value: float, width: float) -> str:
    """A bar's value above it, turned where the bar is narrower than the number."""
    if width >= LABEL_WIDTH:
        return _text(x, y, f"{value:.2f}", "middle")
    x += 4
    return _text(x, y, f"{value:.2f}", "start", f' transform="rotate(-90 {x:.1f} {y:.1f})"')


def line_chart(
    lines: Sequence[tuple[Series, Sequence[tuple[float, float]]]],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    at_points: bool = False,
) -> str:
    """Lines with a dot at each of their points.

    Args:
        lines: points each, in order of x.
        x_label: what the x axis shows.
        y_label: what the y axis shows.
        log_x: whether the x axis is logarithmic.
        at_points: whether the x axis is labelled where there are points, and not at round numbers
            from 0 up.
    """
    xs = sorted({x for _, points in lines for x, _ in points})
    highest = max(v for _, points in lines for _, v in points)
    y_marks = ticks(highest)
    y = Axis(0, highest or 1.0, HEIGHT - BOTTOM, TOP)
    marks = xs if at_points else ticks(xs[-1])
    x = Axis(marks[0], xs[-1], LEFT + 14, WIDTH - RIGHT - 14, log_x)
    parts = [_grid(y, y_marks, y_label)]
    parts += [_text(x(mark), HEIGHT - BOTTOM + 18, f"{mark:g}", "middle") for mark in marks]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, "middle"))
    for series, points in lines:
        path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points)
        parts.append(f'<path class="line s{series.colour}" d="M{path}"/>')
        parts += [
            f'<circle class="f{series.colour}" cx="{x(a):.1f}" cy="{y(b):.1f}" r="3.5">'
            f"<title>{escape(f'{series.name}: {b:.2f} at {a:.0f}')}</title></circle>"
            for a, b in points
        ]
    return _svg(parts, f"{y_label} over {x_label}")


def _grid(y: Axis, marks: Sequence[float], label: str) -> str:
    lines = "".join(f"M{LEFT} {y(mark):.1f}H{WIDTH - RIGHT}" for mark in marks)
    texts = "".join(_text(LEFT - 8, y(mark) + 4, f"{mark:g}", "end") for mark in marks)
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f' transform="rotate(-90 12 {middle:.1f})"'
    return f'<path class="grid" d="{lines}"/>{texts}{_text(12, middle, label, "middle", turned)}'


def _text(x: float, y: float, text: str, anchor: str, transform: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{transform}>{escape(text)}</text>'


def _svg(parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
