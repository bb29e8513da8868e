"""Pairs of tiny targets with scripted or random drafters, and what they generate."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx import GenerationResponse, Pair, stream_generate
from dflash_mlx.drafter.config import DrafterConfig
from dflash_mlx.drafter.model import Drafter
from dflash_mlx.drafter.rope_config import RopeConfig
from dflash_mlx.drafter.selector import CandidateSelector
from dflash_mlx.loading.loader import make_pair
from dflash_mlx.target.target import Target
from support.oracle import OracleDrafter
from support.plain import vocab_of
from support.tiny import SIZES, VOCAB


def scripted(counts: Sequence[int]) -> Callable[[int], int]:
    """Accepted drafts of each round: ``counts``, over and over."""
    return lambda number: counts[number % len(counts)]


@contextmanager
def oracle_pair(
    model: nn.Module,
    truth: Sequence[int],
    counts: Sequence[int] = (2, 0, 3, 1),
    block_size: int = 4,
    context_length: int | None = None,
    taps: Sequence[int] = (0, -1),
) -> Iterator[Pair]:
    """A pair whose drafter knows ``truth``, prompt included, and accepts by ``counts``."""
    taps = sorted({i % len(model.layers) for i in taps})
    target = Target(model, taps)
    oracle = OracleDrafter([truth], scripted(counts), vocab_of(model), block_size)
    with Pair(target, oracle, context_length) as pair:
        yield pair


def tiny_config(**changes: object) -> DrafterConfig:
    """A drafter's config that fits the tiny targets."""
    config = {
        "hidden_size": SIZES["hidden_size"],
        "target_hidden_size": SIZES["hidden_size"],
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCAB,
        "block_size": 8,
        "mask_token_id": 3,
        "target_layer_ids": (0, 2),
        "num_target_layers": SIZES["num_hidden_layers"],
        "rope": RopeConfig(
            rope_type="default", theta=1e4, factor=1.0, attention_factor=1.0, traditional=False
        ),
        "attention_bias": False,
        "max_position_embeddings": 4096,
        "has_mask_embedding": False,
    }
    return DrafterConfig(**(config | changes))


def tiny_drafter(seed: int = 0, **changes: object) -> Drafter:
    """A random drafter in float32."""
    drafter = Drafter(tiny_config(**changes))
    mx.random.seed(seed)
    drafter.update(
        tree_map(
            lambda w: mx.random.normal(w.shape) * 0.3 if w.ndim > 1 else w, drafter.parameters()
        )
    )
    mx.eval(drafter.parameters())
    return drafter.eval()


def tiny_selector(vocab: int = VOCAB, top_k: int = 4, seed: int = 0) -> CandidateSelector:
    """A random candidate selector for hidden states of the tiny drafters."""
    config = tiny_config(vocab_size=vocab, selector_rank=6, selector_top_k=top_k)
    mx.random.seed(seed)
    selector = CandidateSelector(config)
    selector.update(tree_map(lambda w: mx.random.normal(w.shape), selector.parameters()))
    mx.eval(selector.parameters())
    return selector


@contextmanager
def random_pair(model: nn.Module, seed: int = 0, **changes: object) -> Iterator[Pair]:
    """A pair with a random drafter, whose drafts are as good as chance."""
    with make_pair(model, tiny_drafter(seed, **changes)) as pair:
        yield pair


def respond(
    pair: Pair, tokenizer: TokenizerWrapper, prompt: Sequence[int], n: int, **options: object
) -> list[GenerationResponse]:
    """All responses of one generation of at most ``n`` tokens.

    Unless told otherwise the blocks are the drafter's largest: nothing depends on the machine.
    """
    if pair.drafter is not None and options.get("draft", True):
        options.setdefault("block_size", pair.drafter.block_size)
    return list(stream_generate(pair, tokenizer, prompt, max_tokens=n, **options))


def tokens_of(responses: Sequence[GenerationResponse]) -> list[int]:
    """The emitted tokens."""
    return [r.token for r in responses if r.token is not None]


def text_of(responses: Sequence[GenerationResponse]) -> str:
    """The emitted text."""
    return "".join(r.text for r in responses)


def accept_everything(drafts: mx.array, targets: mx.array) -> tuple[mx.array, mx.array]:
    """In place of ``accept_equal``: what the target thinks of the drafts is not asked."""
    tokens = mx.concatenate([drafts, targets[:, -1:]], axis=1)
    return tokens, mx.full((drafts.shape[0],), drafts.shape[1], mx.int32)
