"""``block_size="auto"``: a pair's costs, known or measured, and the block sizes of a generation."""

import copy
import os
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import mlx.core as mx
from mlx_lm.generate import wired_limit

from ..engine.block_size import BlockController, BlockSizes
from ..engine.cache_options import largest_block
from ..engine.calibration import calibrate
from ..engine.cost_file import CostFile
from ..engine.costs import GREEDY, CostTable, guess_for_batch
from ..engine.request import AUTO, Request, RoundOptions
from ..errors import UserError
from ..files import fingerprint
from ..loading.pair import Pair

UNCERTAIN = (
    "What rounds cost here is uncertain: the machine was busy while they were timed, so that times "
    "contradict one another. They are not stored; `dflash-mlx tune` measures again."
)


def tune(
    model: Pair,
    progress: Callable[[int, int], None] = lambda done, total: None,
    again: bool = False,
    batch: int = 1,
) -> CostTable:
    """What rounds of this pair cost on this machine: known, stored, or measured and stored.

    Generation with ``block_size="auto"`` asks for it by itself; the first time takes seconds. If
    times contradict one another, that is warned of, and they serve this pair but are not stored.
    What rounds of several sequences cost is guessed from that and learned, unless it is asked for.

    Args:
        model: from :func:`dflash_mlx.load`, with a drafter.
        progress: called with measurements done and in all, if there are any to be made.
        again: measure, whatever is known.
        batch: sequences in a round.

    Raises:
        UserError: the pair has no drafter.
    """
    if model.drafter is None:
        raise UserError("No drafter is loaded, so there is no block size to tune.")
    if model.costs is not None and not again and batch == 1:
        return model.costs
    largest = largest_block(model, model.target.make_cache())
    file = CostFile(_cost_key(model, largest, batch))
    table = None if again else file.read()
    if table is None:
        with wired_limit(model.model):
            table = calibrate(
                model.target, model.drafter, largest, model.context_length, progress, batch
            )
        mx.clear_cache()
        if table.uncertain:
            warnings.warn(UNCERTAIN, stacklevel=2)
            file = None
        else:
            file.write(table)
    if batch == 1:
        model.costs, model.cost_file = table, file
    else:
        model.batch_costs[batch] = table, file
    return table


def batch_costs(model: Pair, batch: int) -> CostTable | None:
    """What rounds of ``batch`` sequences cost: known, stored, or guessed; None without costs."""
    if batch not in model.batch_costs and model.costs is not None:
        largest = largest_block(model, model.target.make_cache())
        file = CostFile(_cost_key(model, largest, batch))
        model.batch_costs[batch] = file.read() or guess_for_batch(model.costs, batch), file
    return model.batch_costs.get(batch, (None,))[0]


def remember_batches(model: Pair) -> None:
    """Store what rounds of several sequences have taught."""
    for batch, (table, file) in model.batch_costs.items():
        if file is not None:
            model.batch_costs[batch] = file.update(table), file


def sizes_for(model: Pair, request: Request) -> BlockSizes:
    """The block sizes that ``request`` asks for; measures first if nobody has."""
    options = request.options
    if options.block_size != AUTO:
        return BlockSizes(options.block_size)
    if request.room <= 1:
        # A single token is the bonus of a round of any size.
        return BlockSizes(1)
    table, largest = tune(model), request.largest_block
    users = options.logits_processors or options.sampler is not None
    if users or request.quantization is not None or request.rotating_size is not None:
        # What rounds with a user's function, or on other caches than the target's own, take says
        # nothing of other texts.
        return BlockController(copy.deepcopy(table), largest)
    return BlockController(table, largest, _choice(options), partial(_remember, model, table))


def _remember(model: Pair, table: CostTable) -> None:
    # Unless the pair has got other costs meanwhile.
    if model.costs is table and model.cost_file is not None:
        model.costs = model.cost_file.update(table)


def _choice(options: RoundOptions) -> str:
    """What there is to compute when tokens are chosen, as one name."""
    parts = {
        "bias": bool(options.logit_bias),
        "repetition": bool(options.repetition_penalty),
        "presence": bool(options.presence_penalty),
        "frequency": bool(options.frequency_penalty),
        "logprobs": options.logprobs,
    }
    if not options.greedy:
        parts |= {
            "temp": True,
            "top_p": 0 < options.top_p < 1,
            "top_k": options.top_k > 0,
            "min_p": options.min_p > 0,
            "keep": options.min_tokens_to_keep > 1,
            "xtc": options.excludes,
            "rejection": options.acceptance == "rejection",
        }
    return "+".join(name for name, present in parts.items() if present) or GREEDY


def _cost_key(model: Pair, largest: int, batch: int = 1) -> dict[str, Any]:
    """All that costs depend on."""
    device = mx.device_info()
    return {
        **({"batch": batch} if batch > 1 else {}),
        "device": device["device_name"],
        "architecture": device["architecture"],
        "backend": str(mx.default_device().type),
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in ("mlx", "mlx-lm", "dflash-mlx")},
        "target": fingerprint(model.model),
        "drafter": model.drafter.fingerprint,
        "largest_block": largest,
    }
