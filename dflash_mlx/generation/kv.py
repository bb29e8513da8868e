"""Which caches one generation runs on: the caller's, rotating ones, quantized ones."""

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.generate import DEFAULT_QUANTIZED_KV_START
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache

from ..cache.adopt import StockCache, describe, leaves, row_caches
from ..cache.quantized import KVQuantization
from ..cache.ring import LARGEST_BLOCK
from ..errors import UserError, at_least_one, counted
from ..target.target import Target

GROUP_SIZE = 64
_NO_ROTATION = "mlx-lm quantizes no rotating cache."


def cached_tokens(target: Target, cache: list[StockCache] | None) -> int:
    """Tokens that a prompt cache already holds.

    Raises:
        UserError: it is not a cache of one sequence that this target can continue.
    """
    if cache is None:
        return 0
    found, needed = (list(map(describe, x)) for x in (cache, _alike(target, cache)))
    if len(found) != len(needed):
        raise UserError(
            f"The prompt cache has {counted(len(found), 'layer')}, but the target has "
            f"{len(needed)}."
        )
    if found != needed:
        raise UserError(
            f"The prompt cache holds {', '.join(sorted(set(found)))}, but the target's layers need "
            f"{', '.join(sorted(set(needed)))}, each at its place."
        )
    rows = row_caches(cache)
    if quantized := _quantized(rows):
        _check_quantizable(target, quantized.bits, quantized.group_size)
    if sizes := {_batch(c) for c in rows if c.keys is not None} - {1}:
        raise UserError(f"The prompt cache holds a batch of {max(sizes)}; one sequence is needed.")
    if any(c.offset and c.keys is None for c in rows):
        raise UserError(
            "The prompt cache is in use by another generation; let that one end, or close it."
        )
    recurrent = [c for c in leaves(cache) if isinstance(c, ArraysCache)]
    if any(
        c.batch_size > 1 or c.lengths is not None or c.left_padding is not None for c in recurrent
    ):
        raise UserError("The prompt cache is padded for a batch; extract its sequence first.")
    # A recurrent layer does not know how many tokens it has seen, only whether there were any.
    seen = {c.offset > 0 for c in rows} | {not c.empty() for c in recurrent}
    if len({c.offset for c in rows}) > 1 or len(seen) > 1:
        raise UserError("The prompt cache's layers differ in length, so it is damaged.")
    return rows[0].offset


def _alike(target: Target, cache: Sequence[StockCache]) -> list[StockCache]:
    """The target's caches in the form that ``cache`` has, where the target can have that form."""
    rows = row_caches(cache)
    kept = [c.max_size for c in rows if isinstance(c, RotatingKVCache) and c.keep]
    made = target.make_cache(kept[0] if kept and target.takes_max_kv_size else None)
    if (quantized := _quantized(rows)) is None:
        return made
    like = QuantizedKVCache(quantized.group_size, quantized.bits)
    return [like if type(c) is KVCache else c for c in made]


def _quantized(rows: Sequence[StockCache]) -> QuantizedKVCache | None:
    return next((c for c in rows if isinstance(c, QuantizedKVCache)), None)


def _batch(cache: StockCache) -> int:
    keys = cache.keys[0] if isinstance(cache, QuantizedKVCache) else cache.keys
    return keys.shape[0]


def kv_quantization(
    target: Target,
    caches: Sequence[StockCache],
    bits: int | None,
    group_size: int,
    start: int,
) -> KVQuantization | None:
    """What ``kv_bits`` and its companions ask for.

    Raises:
        UserError: a value is wrong, or mlx-lm cannot quantize ``caches`` so.
    """
    if bits is None:
        if (group_size, start) != (GROUP_SIZE, DEFAULT_QUANTIZED_KV_START):
            raise UserError("kv_group_size and quantized_kv_start do nothing without kv_bits.")
        return None
    at_least_one("kv_bits", bits)
    at_least_one("kv_group_size", group_size)
    if not isinstance(start, int) or start < 0:
        raise UserError(f"quantized_kv_start must be a whole number from 0 up, not {start!r}.")
    _check_quantizable(target, bits, group_size)
    for c in row_caches(caches):
        if isinstance(c, RotatingKVCache):
            raise UserError(f"kv_bits cannot be used with {describe(c)}: {_NO_ROTATION}")
        if isinstance(c, QuantizedKVCache) and (c.bits, c.group_size) != (bits, group_size):
            raise UserError(
                f"The prompt cache holds {describe(c)}, but kv_bits is {bits} and kv_group_size "
                f"{group_size}; give what the cache has, or leave both out."
            )
    return KVQuantization(bits, group_size, start)


def _check_quantizable(target: Target, bits: int, group_size: int) -> None:
    """Check that mlx-lm can quantize this target's caches, by two tokens that nothing computes.

    Raises:
        UserError: saying what mlx-lm says.
    """
    caches, token = target.make_cache(), mx.array([[0]])
    kinds = ", ".join(sorted(set(map(describe, caches))))
    try:
        target.model(token, cache=caches)
        KVQuantization(bits, group_size, 0).apply(caches)
        target.model(token, cache=caches)
    except NotImplementedError as error:
        raise UserError(
            f"kv_bits cannot be used with this target, which keeps {kinds}: {_NO_ROTATION}"
        ) from error
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"This target's caches cannot be quantized to {bits} bits in groups of {group_size} "
            f"(kv_bits, kv_group_size); mlx-lm fails with: {str(error).rstrip('.')}."
        ) from error
    if not any(isinstance(c, QuantizedKVCache) for c in caches):
        raise UserError(
            f"kv_bits cannot be used with this target: it keeps {kinds}, which mlx-lm does not "
            "quantize."
        )


def rotating_size(
    target: Target, cache: Sequence[StockCache] | None, end: float, max_kv_size: int | None
) -> int | None:
    """The size of the rotating caches that ``max_kv_size`` calls for, if it does.

    Args:
        target: whose caches they are.
        cache: the caller's prompt cache, whose size cannot be changed any more.
        end: positions that prompt and text may take together.
        max_kv_size: as given.

    Raises:
        UserError: it is no size, or the text may need more, and a rotating cache is not to be had.
    """
    if max_kv_size is None or end <= at_least_one("max_kv_size", max_kv_size):
        return None
    if cache is not None:
        sizes = {c.max_size for c in row_caches(cache) if isinstance(c, RotatingKVCache) and c.keep}
        if sizes == {max_kv_size}:
            return None
        raise UserError(
            f"max_kv_size {max_kv_size} is less than prompt and max_tokens together ({end}), but "
            "the prompt cache was not made with that size; use model.make_prompt_cache("
            f"max_kv_size={max_kv_size}), or lower max_tokens."
        )
    if not target.takes_max_kv_size:
        raise UserError(
            f"max_kv_size {max_kv_size} is less than prompt and max_tokens together ({end}), but "
            "this target's family shapes its own caches, and mlx-lm would not heed the option. "
            "Raise it, or lower max_tokens."
        )
    return max_kv_size


def largest_block(caches: Sequence[StockCache]) -> int | None:
    """The most rows that a round of ``caches`` may have, or None for any number."""
    rotating = any(isinstance(c, RotatingKVCache) for c in row_caches(caches))
    return LARGEST_BLOCK if rotating else None
