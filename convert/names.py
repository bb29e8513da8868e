"""By which MLX name a checkpoint's tensor goes, and which tensors are left out and why."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from ..errors import UserError

# Spellings that mean the same in every format.
COMMON_RENAMES = {
    "candidate_selector.predecessor_codebook": "candidate_selector.predecessor_codebook.weight",
    "candidate_selector.successor_codebook": "candidate_selector.successor_codebook.weight",
    "hidden_dim_adapter.proj.weight": "hidden_dim_adapter.weight",
}
# Tensors that no forward pass of the drafter needs.
_DROPPED = {
    "t2d": "the inverse of d2t, with which it was compared",
    "*rotary_emb.inv_freq": "follows from rope in config.json",
    "verifier_*": "the target's own, used in training alone",
}
_PREFIXES = ("model.", "module.", "draft_model.")
# Some exports put the body under a prefix and these beside it.
_OUTSIDE = frozenset({"lm_head.weight", "d2t", "t2d"})


class NameMap(NamedTuple):
    """The tensors that are used, as ``{MLX name: name in the files}``, and those that are not.

    ``dropped`` says why, by the name in the files.
    """

    used: dict[str, str]
    dropped: dict[str, str]


def map_names(names: Iterable[str], renames: Mapping[str, str]) -> NameMap:
    """Give every tensor of a checkpoint its MLX name, or a reason to leave it out.

    Args:
        names: As in the files.
        renames: The format's own spellings, beside ``COMMON_RENAMES``.

    Raises:
        UserError: Two tensors have the same MLX name, or a prefix is on some names alone.
    """
    names = sorted(names)
    prefix = _prefix(names)
    used: dict[str, str] = {}
    dropped: dict[str, str] = {}
    for name in names:
        short = name.removeprefix(prefix)
        reason = next((why for like, why in _DROPPED.items() if fnmatchcase(short, like)), None)
        if reason is not None:
            dropped[name] = reason
            continue
        mlx_name = renames.get(short) or COMMON_RENAMES.get(short, short)
        if mlx_name in used:
            raise UserError(
                f"The checkpoint has both {used[mlx_name]} and {name}, which are the same tensor; "
                "remove one."
            )
        used[mlx_name] = name
    return NameMap(used, dropped)


def _prefix(names: list[str]) -> str:
    inside = [name for name in names if name not in _OUTSIDE]
    for prefix in _PREFIXES:
        prefixed = sum(name.startswith(prefix) for name in inside)
        if prefixed not in (0, len(inside)):
            raise UserError(
                f"{prefixed} of {len(inside)} tensors have the prefix {prefix!r}; "
                "either all or none must have it."
            )
        if prefixed:
            return prefix
    return ""
