"""The ways of generating that are compared: plain, DFlash by block size, and mlx-lm's own two."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
from mlx_lm.generate import GenerationResponse as MlxLmResponse
from mlx_lm.sample_utils import make_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..engine.sampling import Sampling
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


def in_words(sampling: Sampling) -> str:
    """How tokens are chosen, as reports say it."""
    if sampling.greedy:
        return "greedy"
    return f"temperature {sampling.temp:g}, seed {sampling.seed}, {sampling.acceptance}"


def our_arms(
    pair: Pair, tokenizer: TokenizerWrapper, sampling: Sampling, block_sizes: Sequence[BlockSize]
) -> list[Arm]:
    """Plain decoding, and drafting with each block size."""
    same = sampling.greedy or sampling.acceptance == "coupled"
    chosen = {f.name: getattr(sampling, f.name) for f in fields(Sampling)}

    def arm(name: str, same_text: bool, **rounds: object) -> Arm:
        def stream(tokens: list[int], n: int) -> Iterator[Response]:
            return stream_generate(pair, tokenizer, tokens, n, **chosen, **rounds)

        return Arm(name, stream, same_text)

    plain = arm(PLAIN, True, draft=False)
    return [plain, *(arm(f"block {size}", same, block_size=size) for size in block_sizes)]


def mlx_lm_arms(
    model: nn.Module,
    tokenizer: TokenizerWrapper,
    sampling: Sampling,
    draft_model: nn.Module | None = None,
    num_draft_tokens: int = 2,
) -> list[Arm]:
    """mlx-lm's plain decoding, and its speculation with a draft model if there is one.

    It draws its random numbers in another way, so that only its greedy text is comparable.
    """

    def arm(name: str, **drafting: object) -> Arm:
        def stream(tokens: list[int], n: int) -> Iterator[Response]:
            mx.random.seed(sampling.seed or 0)
            sampler = make_sampler(temp=sampling.temp)
            return mlx_lm.stream_generate(model, tokenizer, tokens, n, sampler=sampler, **drafting)

        return Arm(name, stream, sampling.greedy)

    arms = [arm(MLX_LM)]
    if draft_model is not None:
        drafting = {"draft_model": draft_model, "num_draft_tokens": num_draft_tokens}
        arms.append(arm(MLX_LM_DRAFT, **drafting))
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
