"""One tiny generation with and without a drafter, and the way that its kernels went."""

import warnings
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import llama
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from ..drafter.model import Drafter
from ..engine.sampling import Sampling
from ..loading.loader import make_pair
from ..loading.pair import Pair
from ..target.target import Target
from ..train.design import design
from ..train.recipe import Recipe
from . import lossless
from .finding import Finding
from .fused import unbuilt_kernels
from .run import Case

BLOCK_SIZE = 8
_TOKENS = 48
_CASE = Case("tiny", "", 0, [1, 5, 9, 200, 77])

# Sizes that the Metal kernels take, and no larger.
_SIZES = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "vocab_size": 256,
}


def check_self() -> list[Finding]:
    """Build a tiny random pair in memory, and compare its text with and without drafting."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with tiny_pair() as pair:
                return [_kernels(pair, unbuilt_kernels(caught)), _generation(pair)]
        except (RuntimeError, ValueError) as error:
            return [Finding("generation", "fault", f"A tiny generation fails: {error}.")]


def _kernels(pair: Pair, unbuilt: list[str]) -> Finding:
    path = pair.drafter.kernels(BLOCK_SIZE)
    data = {"path": path, "unbuilt": unbuilt}
    if unbuilt:
        text = f"{' '.join(unbuilt)} The text stays the same; it takes longer. Please report it."
        return Finding("kernels", "advice", text, data)
    text = (
        f"In a tiny pair in memory, the drafter's fused parts run so: {path}. Other sizes may run "
        "otherwise; --draft-model tells of a drafter of yours."
    )
    return Finding("kernels", "ok", text, data)


def _generation(pair: Pair) -> Finding:
    words = WordLevel({str(i): i for i in range(_SIZES["vocab_size"])}, unk_token="0")
    tokenizer = TokenizerWrapper(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)))
    greedy, quiet = Sampling(), lambda _: None
    texts = lossless.check_texts(pair, tokenizer, [_CASE], [BLOCK_SIZE], greedy, _TOKENS, quiet)
    check = next(texts)
    found = check.difference
    if found is None:
        text = (
            f"A tiny pair in memory generated {check.tokens} tokens, the same ones with and "
            "without drafting."
        )
        return Finding("generation", "ok", text)
    where = f"With drafting, a tiny pair in memory generated another token {found.index}"
    if found.near_tie:
        text = f"{where}, where the target's best two are as good as equal ({found.gap:.2g} apart)."
        return Finding("generation", "ok", text)
    text = f"{where}, which is {found.behind:.2g} behind the best. Please report this."
    return Finding("generation", "fault", text)


def tiny_pair() -> Pair:
    """A llama, and a drafter as training would design it, with random weights in float32."""
    mx.random.seed(0)
    model = llama.Model(llama.ModelArgs(model_type="llama", tie_word_embeddings=True, **_SIZES))
    recipe = Recipe(output=Path(), block_size=BLOCK_SIZE, layers=2, taps=(0, 1), mask_token=0)
    drafter = Drafter(design(Target(model), None, None, recipe))
    for module in (model, drafter):
        module.update(tree_map(_spread, module.parameters()))
        mx.eval(module.parameters())
    return make_pair(model, drafter)


def _spread(weight: mx.array) -> mx.array:
    """Weights that make the text wander instead of repeating one token."""
    return mx.random.normal(weight.shape) * 0.2 if weight.ndim > 1 else mx.ones(weight.shape)
