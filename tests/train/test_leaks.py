"""Nothing reaches a block that its round would not know; a block alone equals the inference."""

import mlx.core as mx
import numpy as np
import pytest
from support.training import numbers, random_text, spread, tiny_learner

from dflash_mlx.drafter.bound import BoundDrafter
from dflash_mlx.drafter.rope_config import RopeConfig
from dflash_mlx.train.blocks import Sequence, make_blocks
from dflash_mlx.train.learner import Learner

ANCHORS = np.array([10, 17, 18, 30])
KINDS = {
    "full": {},
    "causal": {"causal_layers": (True, True)},
    "sliding by row": {
        "layer_types": ("sliding_attention", "full_attention"),
        "sliding_window": 12,
        "causal_layers": (True, False),
    },
    "sliding by anchor": {
        "layer_types": ("full_attention", "sliding_attention"),
        "sliding_window": 9,
        "window_rule": "anchor",
    },
    "mask embedding": {"has_mask_embedding": True},
    "scaled": {
        "input_embedding_scale": 2.0,
        "output_multiplier": 0.5,
        "final_logit_softcapping": 5.0,
    },
    "DFlash 2": {
        "conv_kernel_size": 3,
        "conv_group_size": 8,
        "selector_rank": 6,
        "selector_top_k": 4,
    },
    "two passes": {"draft_passes": 2, "draft_prefix": 3},
    "DFlash 2 in two passes": {
        "conv_kernel_size": 2,
        "conv_group_size": 8,
        "selector_rank": 6,
        "selector_top_k": 4,
        "draft_passes": 2,
        "draft_prefix": 4,
    },
    "no taps": {"target_layer_ids": ()},
    "adapter": {"has_hidden_dim_adapter": True},
    "YaRN, neighbours rotated": {
        "rope": RopeConfig(
            rope_type="yarn",
            theta=1e4,
            factor=4.0,
            attention_factor=1.5,
            traditional=True,
            original_max_position_embeddings=16,
            beta_fast=32.0,
            beta_slow=1.0,
        )
    },
}


@pytest.fixture(params=KINDS)
def learner(request: pytest.FixtureRequest) -> Learner:
    return tiny_learner(**KINDS[request.param])


@pytest.fixture
def text() -> Sequence:
    return random_text()


# Rows of each block that hold the text's own tokens: those of a second pass have a prefix.
GIVEN = {"first pass": [1, 1, 1, 1], "second pass": [3, 1, 4, 2]}


@pytest.fixture(params=GIVEN)
def given(request: pytest.FixtureRequest) -> np.ndarray:
    return np.array(GIVEN[request.param], np.int32)


def logits_of(learner, text, given, anchors=ANCHORS, change=None):
    """Logits of the blocks at ``anchors``, after ``change`` of the features ``[S, F]``."""
    features = learner.features(mx.array(text.tokens))
    if change is not None:
        features = features._replace(taps=change(features.taps))
    context = learner.context(learner.parameters(), features)
    return learner.logits(learner.hidden(make_blocks(text, anchors, 8, given), context))


def before_and_after(learner, text, given, where):
    """Logits before and after other tokens come ``where`` says, with the features as they were."""
    features = learner.features(mx.array(text.tokens))
    context = learner.context(learner.parameters(), features)
    clean = learner.logits(learner.hidden(make_blocks(text, ANCHORS, 8, given), context))
    text.tokens[where] = (text.tokens[where] + 1) % 97
    return clean, learner.logits(learner.hidden(make_blocks(text, ANCHORS, 8, given), context))


@pytest.mark.parametrize("n", range(len(ANCHORS)))
def test_features_at_the_anchor_and_after_it_are_not_seen(learner, text, given, n):
    def disturb(taps):
        noise = mx.array(numbers(1, *taps.shape)) * 100
        return mx.where(mx.arange(len(taps))[:, None] >= int(ANCHORS[n]), noise, taps)

    clean, disturbed = (logits_of(learner, text, given, change=c) for c in (None, disturb))
    assert mx.array_equal(clean[n], disturbed[n])
    if n + 1 < len(ANCHORS):
        # The same noise lies before a later anchor, which must see it.
        assert spread(clean[n + 1], disturbed[n + 1]) > 1e-2


def test_the_feature_before_the_anchor_is_seen(learner, text, given):
    def disturb(taps):
        return mx.where(mx.arange(len(taps))[:, None] == int(ANCHORS[1]) - 1, taps + 1, taps)

    clean, disturbed = (logits_of(learner, text, given, change=c) for c in (None, disturb))
    assert mx.array_equal(clean[0], disturbed[0]) and spread(clean[1], disturbed[1]) > 1e-3


@pytest.mark.parametrize("n", range(len(ANCHORS)))
def test_tokens_after_those_given_are_not_seen(learner, text, given, n):
    after = np.arange(len(text.tokens)) >= ANCHORS[n] + given[n]
    clean, changed = before_and_after(learner, text, given, after)
    assert mx.array_equal(clean[n], changed[n])


def test_the_anchor_itself_is_seen(learner, text, given):
    clean, changed = before_and_after(learner, text, given, ANCHORS[1])
    assert mx.array_equal(clean[0], changed[0]) and spread(clean[1], changed[1]) > 1e-3


def test_the_last_token_given_is_seen(learner, text, given):
    clean, changed = before_and_after(learner, text, given, ANCHORS[2] + given[2] - 1)
    assert mx.array_equal(clean[:2], changed[:2]) and spread(clean[2], changed[2]) > 1e-3


def test_other_blocks_are_not_seen(learner, text, given):
    # Sums of another shape round differently; a leak would be a thousand times larger.
    together = logits_of(learner, text, given)
    mixed = np.array([2, given[1], 5, 1, 3], np.int32)
    others = logits_of(learner, text, mixed, np.array([3, 17, 22, 24, 33]))
    assert spread(together[1], others[1]) < 1e-4
    for n, anchor in enumerate(ANCHORS):
        alone = logits_of(learner, text, given[n : n + 1], np.array([anchor]))
        assert spread(together[n], alone[0]) < 1e-4


@pytest.mark.parametrize("anchor", [0, 1, 10, 31, 39])
@pytest.mark.parametrize("kind", KINDS)
def test_one_block_equals_the_inference_forward(text, kind, anchor):
    learner = tiny_learner(**KINDS[kind])
    if kind == "mask embedding":
        learner.drafter.mask_embedding = mx.array(numbers(2, 32))
    blocks = make_blocks(text, np.array([anchor]), 8)
    features = learner.features(mx.array(text.tokens))
    context = learner.context(learner.parameters(), features)
    hidden = learner.hidden(blocks, context)
    logits = learner.logits(hidden)
    drafts = learner.drafts(hidden, logits, blocks, context)
    mx.eval(logits, drafts)

    learner.drafter.stack_context()
    bound = BoundDrafter(learner.drafter, learner.target)
    context = bound.make_context(mx.array([0], mx.int32))
    # The prompt row by row, so that a window wraps around.
    for end in range(1, anchor + 1):
        for cache in context:
            cache.reserve(end + 8)
        bound.write_context(features.taps[None, end - 1 : end], context)
        for cache in context:
            cache.commit(mx.array([end], mx.int32), mx.array([0], mx.int32))
    for cache in context:
        cache.reserve(anchor + 8)
    proposal = bound.draft(mx.array([int(text.tokens[anchor])]), 8, context)
    inferred = proposal.logits if proposal.logits.ndim == 3 else proposal._parts[1]
    # Rows after the prefix are of the second pass, which only the drafts compare.
    rows = (learner.drafter.config.draft_prefix or 8) - 1
    difference = spread(logits[:, :rows], inferred[:, :rows])
    assert difference < 1e-5 * max(1.0, mx.abs(inferred).max().item())
    chosen, _ = proposal.follow(mx.argmax(proposal.logits, axis=-1), proposal.logits)
    assert mx.array_equal(chosen, drafts)
