"""What :mod:`dflash_mlx.measure.verify` found, in words."""

from collections.abc import Callable, Sequence

from ..errors import counted
from .difference import Difference
from .tables import Table, as_text
from .verify import Check

Decode = Callable[[list[int]], str]

_NEAR_TIES = (
    "A near-tie is no fault of drafting: a pass over several rows may use another kernel than a "
    "pass over one row, which rounds sums differently, and where the best tokens are closer than "
    "that, either may come out. mlx-lm's own text changes in the same way between batch sizes and "
    "lengths of prompt chunks. Both texts are then the target's."
)


def in_words(checks: Sequence[Check], decode: Decode) -> str:
    """All checks as a table, each difference explained, and the verdict.

    Args:
        checks: what was found.
        decode: from token ids to text.
    """
    rows = [
        [
            f"{check.prompt}, {check.choice}, {check.arm}",
            str(check.tokens),
            "-" if check.tau is None else f"{check.tau:.2f}",
            _brief(check),
        ]
        for check in checks
    ]
    table = Table("Against plain decoding", ["text", "tokens", "τ", "verdict"], rows)
    differing = [check for check in checks if check.difference is not None]
    parts = [as_text(table), *(explanation(check, decode) for check in differing)]
    if any(check.verdict == "near-tie" for check in checks):
        parts.append(_NEAR_TIES)
    return "\n\n".join([*parts, conclusion(checks)])


def _brief(check: Check) -> str:
    if check.difference is None:
        return "equal"
    return f"{check.verdict} at token {check.difference.index}"


def explanation(check: Check, decode: Decode) -> str:
    """One difference: where, which tokens, and how nearly the target could have chosen either."""
    found = check.difference
    name = f"{check.prompt}, {check.choice}, {check.arm}"
    if found.expected is None or found.found is None:
        sides = ("goes on", "has ended") if found.found is None else ("has ended", "goes on")
        return f"{name}: at token {found.index} plain's text {sides[0]} and this one {sides[1]}."
    lines = [
        f"{name}: token {found.index} is {_token(found.found, decode)}, and plain's is "
        f"{_token(found.expected, decode)}.",
        f"  Row by row, the target's best two logits there are {found.gap:.3g} apart, and the "
        f"lesser of these two tokens is {found.behind:.3g} behind the best. Rounding explains up "
        f"to {found.tolerance:.3g}, which is {found.roundings} roundings of {found.dtype} at the "
        "largest logit.",
    ]
    if found.moved is not None:
        lines.append(_in_block(found, decode))
    if found.near_tie:
        lines.append("  This is a near-tie.")
    else:
        lines.append("  Rounding does not explain this: it is a fault, please report it.")
    return "\n".join(lines)


def _in_block(found: Difference, decode: Decode) -> str:
    same = " as well" if found.preferred == found.found else ""
    return (
        f"  mlx-lm's own caches, given {counted(found.rows, 'row')} in one pass, move the logits "
        f"by up to {found.moved:.3g} and prefer {_token(found.preferred, decode)}{same}."
    )


def _token(token: int, decode: Decode) -> str:
    return f"{decode([token])!r} ({token})"


def conclusion(checks: Sequence[Check]) -> str:
    """The verdict on all checks in a sentence."""
    counts = {v: sum(c.verdict == v for c in checks) for v in ("equal", "near-tie", "different")}
    if counts["equal"] == len(checks):
        texts = f"All {len(checks)} texts are" if len(checks) > 1 else "The text is"
        return f"{texts} equal to plain decoding's, token for token."
    return (
        f"{counts['equal']} of {len(checks)} texts are equal to plain decoding's, "
        f"{counts['near-tie']} part at a near-tie, and {counts['different']} differ without that "
        "explanation."
    )
