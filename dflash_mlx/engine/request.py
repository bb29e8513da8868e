"""What the round loop is asked for: its options, and what they come to for one pair and prompt."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..cache.quantized import KVQuantization
from ..errors import UserError
from .cache_options import CacheOptions
from .choose import LogitsProcessor
from .option import check_callable, option
from .penalties import Penalties
from .sampling import Sampling

AUTO = "auto"
_option = partial(option, group="rounds and text")


@dataclass(frozen=True)
class RoundOptions(CacheOptions, Penalties, Sampling):
    """The options of rounds.

    Attributes:
        draft: False decodes plainly.
        block_size: positions a round verifies, anchor included; :data:`AUTO` or None chooses for
            each round.
        max_tokens, prefill_step_size: see their help.
        logits_processors: called as mlx-lm calls them.
        logprobs: whether tokens come with log-probabilities.
        prompt_progress_callback: called with prompt tokens done and in all.

    Raises:
        UserError: a value is out of its range.
    """

    max_tokens: int = _option(
        256, "tokens to emit, -1 for no limit", flags=("-m", "--max-tokens"), least=-1
    )
    draft: bool = _option(True, "decode plainly, without loading a drafter", flags=("--no-draft",))
    block_size: int | str | None = _option(
        AUTO,
        "tokens that one pass of the target checks: the last one of the text, and the drafts after "
        "it; auto chooses for each pass what is fastest for this text on this machine, no drafts "
        "included (the first use of a pair measures that for some seconds)",
        metavar="{auto,N}",
    )
    prefill_step_size: int = _option(2048, "prompt tokens a pass", least=1)
    logits_processors: Sequence[LogitsProcessor] | None = None
    logprobs: bool = False
    prompt_progress_callback: Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.block_size
        if size not in (AUTO, None) and not (isinstance(size, int) and size > 0):
            raise UserError(
                f"`block_size` must be {AUTO!r} or a whole number from 1 up, not {size!r}."
            )
        processors = self.logits_processors or ()
        if not isinstance(processors, Sequence) or not all(map(callable, processors)):
            raise UserError(f"`logits_processors` cannot be called: {processors!r}.")
        check_callable("prompt_progress_callback", self.prompt_progress_callback)


@dataclass(frozen=True)
class Request:
    """One generation, resolved: its options, and what they come to.

    Attributes:
        options: with a seed if there is sampling, whether the pair drafts at all, a block size, and
            somebody who is told of the prompt's progress.
        prompt: token ids, at least one.
        room: how many tokens may be emitted.
        cached_tokens: how many tokens the prompt cache holds.
        rotating_size: of the rotating caches to make, or None for the target's own.
        quantization: of the target's caches, or None.
        largest_block: the largest block that a round may have.
    """

    options: RoundOptions
    prompt: list[int]
    room: float
    cached_tokens: int
    rotating_size: int | None
    quantization: KVQuantization | None
    largest_block: int
