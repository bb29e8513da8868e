"""The second draft pass: what it sees, which rows are its own, and that text stays the target's."""

import mlx.core as mx
import pytest
from support.pairs import random_pair, respond, tiny_drafter, tokens_of
from support.plain import clear_case, plain
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx.drafter.bound import BoundDrafter
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.errors import UserError
from dflash_mlx.target.target import Target

PASSES = {"draft_passes": 2, "draft_prefix": 3}
DFLASH2 = {
    "conv_kernel_size": 2,
    "conv_group_size": 8,
    "selector_rank": 6,
    "selector_top_k": 4,
}


def drafts(given: list[int] | None, block_size: int = 8, **changes: object) -> mx.array:
    """Logits of a block; ``given`` replaces the first pass's choice of the leading rows."""
    drafter = tiny_drafter(seed=1, **changes)
    target = Target(tiny_model("llama", seed=2), drafter.config.target_layer_ids)
    drafter.stack_context()
    bound = BoundDrafter(drafter, target)
    context = bound.make_context(mx.array([0], mx.int32))
    for cache in context:
        cache.reserve(16)
    features = mx.random.normal((1, 6, 64), key=mx.random.key(0))
    bound.write_context(features, context)
    for cache in context:
        cache.commit(mx.array([6], mx.int32), mx.array([0], mx.int32))
    if given is not None:
        return bound._head(bound._pass(mx.array([given]), block_size, context)[1])
    return bound.draft(mx.array([7]), block_size, context).logits


def test_rows_of_the_first_and_of_the_second_pass():
    once, twice = drafts(None), drafts(None, **PASSES)
    leading = mx.argmax(once, axis=-1)[0, :2].tolist()
    again = drafts([7, *leading])
    assert mx.allclose(twice[:, :2], once[:, :2], atol=1e-5)
    assert mx.allclose(twice[:, 2:], again[:, 2:], atol=1e-5)
    assert not mx.allclose(twice[:, 2:], once[:, 2:], atol=1e-2)


def test_a_block_no_longer_than_the_prefix_is_drafted_once():
    assert mx.array_equal(drafts(None, 3, **PASSES), drafts(None, 3))


@pytest.mark.parametrize("changes", [PASSES, PASSES | DFLASH2], ids=["v1", "DFlash 2"])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temp=0.8, seed=3)], ids=["greedy", "coupled"]
)
def test_text_is_the_targets(changes, sampling):
    model = tiny_model("llama")
    prompt, text = clear_case(model, 9, 40, sampling)
    assert plain(model, prompt, 40, sampling) == text
    options = {} if sampling.greedy else {"temp": sampling.temp, "seed": sampling.seed}
    with random_pair(model, **changes) as pair:
        assert tokens_of(respond(pair, byte_tokenizer(), prompt, 40, **options)) == text


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"draft_passes": 3}, "draft_passes"),
        ({"draft_passes": 2}, "draft_prefix"),
        ({"draft_passes": 2, "draft_prefix": 1}, "draft_prefix"),
        ({"draft_passes": 2, "draft_prefix": 8}, "draft_prefix"),
        ({"draft_prefix": 3}, "single pass"),
        (PASSES | {"sample_from_anchor": True}, "sample_from_anchor"),
    ],
)
def test_config(changes, words):
    with pytest.raises(UserError, match=words):
        tiny_drafter(**changes)
