"""The ways of generating that are compared: plain, DFlash by block size, and mlx-lm's own two."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
from mlx_lm.generate import GenerationResponse as MlxLmResponse
from mlx_lm.sample_utils import make_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError
from ..generation.response import GenerationResponse
from ..generation.stream import stream_generate
from ..loading.pair import Pair

PLAIN = "plain"
MLX_LM = "mlx-lm"
MLX_LM_DRAFT = "mlx-lm draft model"

BlockSize = int | str
Response = GenerationResponse | MlxLmResponse
Stream = Callable[[list[int], int], Iterator[Response]]


@dataclass(frozen=True)
class Arm:
    """One way of generating.

    Attributes:
        name: as reports call it.
        stream: from prompt tokens and the most tokens to emit to responses.
        same_text: whether its text must be that of the plain arm.
    """

    name: str
    stream: Stream
    same_text: bool


@dataclass(frozen=True)
class Choice:
    """How tokens are chosen, for every arm alike.

    Attributes:
        temp: temperature; 0 is greedy.
        seed: of the sampling.
        acceptance: as in :func:`dflash_mlx.stream_generate`.
    """

    temp: float = 0.0
    seed: int = 0
    acceptance: str = "coupled"

    @property
    def options(self) -> dict[str, float | int | str]:
        """The options of :func:`dflash_mlx.stream_generate`."""
        return {"temp": self.temp, "seed": self.seed, "acceptance": self.acceptance}

    def __str__(self) -> str:
        if not self.temp:
            return "greedy"
        return f"temperature {self.temp:g}, seed {self.seed}, {self.acceptance}"


def block_arm(block_size: BlockSize) -> str:
    """The name of the arm with this block size."""
    return f"block {block_size}"


def our_arms(
    pair: Pair, tokenizer: TokenizerWrapper, choice: Choice, block_sizes: Sequence[BlockSize]
) -> list[Arm]:
    """Plain decoding, and drafting with each block size."""
    same = not choice.temp or choice.acceptance == "coupled"

    def stream(tokens: list[int], n: int, **options: object) -> Iterator[Response]:
        return stream_generate(pair, tokenizer, tokens, n, **choice.options, **options)

    def drafting(size: BlockSize) -> Stream:
        return lambda tokens, n: stream(tokens, n, block_size=size)

    plain = Arm(PLAIN, lambda tokens, n: stream(tokens, n, draft=False), True)
    return [plain, *(Arm(block_arm(size), drafting(size), same) for size in block_sizes)]


def mlx_lm_arms(
    model: nn.Module,
    tokenizer: TokenizerWrapper,
    choice: Choice,
    draft_model: nn.Module | None = None,
    num_draft_tokens: int = 2,
) -> list[Arm]:
    """mlx-lm's plain decoding, and its speculation with a draft model if there is one.

    It draws its random numbers in another way, so that only its greedy text is comparable.
    """

    def stream(tokens: list[int], n: int, **options: object) -> Iterator[Response]:
        mx.random.seed(choice.seed)
        sampler = make_sampler(temp=choice.temp)
        return mlx_lm.stream_generate(model, tokenizer, tokens, n, sampler=sampler, **options)

    def drafting(tokens: list[int], n: int) -> Iterator[Response]:
        return stream(tokens, n, draft_model=draft_model, num_draft_tokens=num_draft_tokens)

    arms = [Arm(MLX_LM, stream, not choice.temp)]
    if draft_model is not None:
        arms.append(Arm(MLX_LM_DRAFT, drafting, not choice.temp))
    return arms


def usable_block_sizes(
    wanted: Sequence[BlockSize], largest: int
) -> tuple[list[BlockSize], list[str]]:
    """The block sizes that a drafter can take, and a sentence on those that it cannot.

    Raises:
        UserError: it can take none of them.
    """
    kept = [size for size in wanted if isinstance(size, str) or size <= largest]
    dropped = [str(size) for size in wanted if size not in kept]
    if not kept:
        raise UserError(
            f"This drafter was trained for blocks of up to {largest}, and only larger ones were "
            f"asked for: {', '.join(dropped)}."
        )
    if not dropped:
        return kept, []
    return kept, [
        f"Left out block size {', '.join(dropped)}: the drafter was trained for up to {largest}."
    ]
