"""Which caches one generation runs on: the caller's, rotating ones, quantized ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
from mlx_lm.generate import DEFAULT_QUANTIZED_KV_START as QUANTIZED_START
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache

from ..cache.adopt import describe, kv_caches, leaves
from ..cache.protocol import StockCache
from ..cache.quantized import KVQuantization
from ..cache.ring import LARGEST_BLOCK
from ..errors import UserError, counted
from ..loading.pair import Pair
from ..target.stock import PlainTarget, StockModel
from ..target.target import Target
from .option import OptionTable, option

GROUP_SIZE = 64
_NO_ROTATION = "mlx-lm quantizes no rotating cache."
_option = partial(option, group="the target's cache")


@dataclass(frozen=True)
class CacheOptions(OptionTable):
    """What the caller wants of the target's caches, with mlx-lm's names and meanings.

    Attributes:
        prompt_cache: the prompt cache to continue and to leave behind, or None for a fresh one.
        max_kv_size, kv_bits, kv_group_size, quantized_kv_start: see their help.

    Raises:
        UserError: a value is out of its range, or has no effect.
    """

    prompt_cache: list[StockCache] | None = None
    max_kv_size: int | None = _option(
        None,
        "positions that a layer of the target keeps at most: the first 4 and the last ones",
        unset="all",
        least=1,
    )
    kv_bits: int | None = _option(
        None, "quantize the target's keys and values", unset="they are not", least=1
    )
    kv_group_size: int = _option(GROUP_SIZE, "group size of that quantization", least=1)
    quantized_kv_start: int = _option(
        QUANTIZED_START, "positions from which on a cache is quantized", least=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = (self.kv_group_size, self.quantized_kv_start) != (GROUP_SIZE, QUANTIZED_START)
        if self.kv_bits is None and given:
            raise UserError(
                "`kv_group_size` and `quantized_kv_start` do nothing without `kv_bits`."
            )

    def quantization(
        self, target: StockModel, caches: Sequence[StockCache]
    ) -> KVQuantization | None:
        """What ``kv_bits`` and its companions ask for.

        Raises:
            UserError: mlx-lm cannot quantize ``caches`` so.
        """
        if self.kv_bits is None:
            return None
        _check_quantizable(target, self.kv_bits, self.kv_group_size)
        for c in kv_caches(caches):
            if isinstance(c, RotatingKVCache):
                raise UserError(f"`kv_bits` cannot be used with {describe(c)}: {_NO_ROTATION}")
            if isinstance(c, QuantizedKVCache) and (
                (c.bits, c.group_size) != (self.kv_bits, self.kv_group_size)
            ):
                raise UserError(
                    f"The prompt cache holds {describe(c)}, but `kv_bits` is {self.kv_bits} and "
                    f"`kv_group_size` {self.kv_group_size}; give what the cache has, or leave both "
                    "out."
                )
        return KVQuantization(self.kv_bits, self.kv_group_size, self.quantized_kv_start)

    def rotating_size(self, target: StockModel, end: float) -> int | None:
        """The size of the rotating caches that ``max_kv_size`` calls for, if it does.

        Args:
            target: whose caches they are.
            end: positions that prompt and text may take together.

        Raises:
            UserError: the text may need more, and a rotating cache is not to be had.
        """
        size, cache = self.max_kv_size, self.prompt_cache
        if size is None or end <= size:
            return None
        if cache is not None and _rotating_sizes(cache) == {size}:
            return None
        if cache is None and target.takes_max_kv_size:
            return size
        if cache is None:
            why = (
                "this target's family shapes its own caches, and mlx-lm would not heed the option. "
                "Raise it, or lower `max_tokens`."
            )
        else:
            why = (
                "the prompt cache was not made with that size; use "
                f"model.make_prompt_cache(max_kv_size={size}), or lower `max_tokens`."
            )
        raise UserError(
            f"`max_kv_size` {size} is less than prompt and `max_tokens` together ({end}), but {why}"
        )


def cached_tokens(target: Target | PlainTarget, cache: list[StockCache] | None) -> int:
    """Tokens that a prompt cache already holds.

    Raises:
        UserError: it is not a cache of one sequence that this target can continue.
    """
    if cache is None:
        return 0
    if isinstance(target, PlainTarget):
        raise UserError(
            f"A prompt cache cannot be continued with this target, which runs on mlx-lm's own "
            f"caches alone. {target.why_plain}"
        )
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
    layers = kv_caches(cache)
    if quantized := _quantized(layers):
        _check_quantizable(target, quantized.bits, quantized.group_size)
    if sizes := {_batch(c) for c in layers if c.keys is not None} - {1}:
        raise UserError(f"The prompt cache holds a batch of {max(sizes)}; one sequence is needed.")
    if any(c.offset and c.keys is None for c in layers):
        raise UserError(
            "The prompt cache is in use by another generation; let that one end, or close it."
        )
    recurrent = [c for c in leaves(cache) if isinstance(c, ArraysCache)]
    if any(
        c.batch_size > 1 or c.lengths is not None or c.left_padding is not None for c in recurrent
    ):
        raise UserError("The prompt cache is padded for a batch; extract its sequence first.")
    # A recurrent layer does not know how many tokens it has seen, only whether there were any.
    seen = {c.offset > 0 for c in layers} | {not c.empty() for c in recurrent}
    if len({c.offset for c in layers}) > 1 or len(seen) > 1:
        raise UserError("The prompt cache's layers differ in length, so it is damaged.")
    return layers[0].offset


def _alike(target: Target, cache: Sequence[StockCache]) -> list[StockCache]:
    """The target's caches in the form that ``cache`` has, where the target can have that form."""
    layers = kv_caches(cache)
    kept = _rotating_sizes(cache)
    made = target.make_cache(kept.pop() if kept and target.takes_max_kv_size else None)
    if (quantized := _quantized(layers)) is None:
        return made
    like = QuantizedKVCache(quantized.group_size, quantized.bits)
    return [like if type(c) is KVCache else c for c in made]


def _quantized(layers: Sequence[StockCache]) -> QuantizedKVCache | None:
    return next((c for c in layers if isinstance(c, QuantizedKVCache)), None)


def _batch(cache: StockCache) -> int:
    keys = cache.keys[0] if isinstance(cache, QuantizedKVCache) else cache.keys
    return keys.shape[0]


def _check_quantizable(target: StockModel, bits: int, group_size: int) -> None:
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
            f"`kv_bits` cannot be used with this target, which keeps {kinds}: {_NO_ROTATION}"
        ) from error
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"This target's caches cannot be quantized to {bits} bits in groups of {group_size} "
            f"(`kv_bits`, `kv_group_size`); mlx-lm fails with: {str(error).rstrip('.')}."
        ) from error
    if not any(isinstance(c, QuantizedKVCache) for c in caches):
        raise UserError(
            f"`kv_bits` cannot be used with this target: it keeps {kinds}, which mlx-lm does not "
            "quantize."
        )


def _rotating_sizes(caches: Sequence[StockCache]) -> set[int]:
    """The sizes that ``max_kv_size`` has given to ``caches``: a family's own windows keep none."""
    return {c.max_size for c in kv_caches(caches) if isinstance(c, RotatingKVCache) and c.keep}


def largest_block(model: Pair, caches: Sequence[StockCache]) -> int:
    """The largest block of a round of the pair on such caches."""
    if model.drafter is None:
        return 1
    rotating = any(isinstance(c, RotatingKVCache) for c in kv_caches(caches))
    trained = model.drafter.block_size
    return min(trained, LARGEST_BLOCK) if rotating else trained
