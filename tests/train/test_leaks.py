"""Nothing reaches a block that its round would not know; a block alone equals the inference."""

import mlx.core as mx
import numpy as np
import pytest
from support.training import (
    DRAFTERS,
    encode,
    logits_of,
    numbers,
    random_text,
    spread,
    tiny_learner,
)

from dflash_mlx.drafter.bound import BoundDrafter
from dflash_mlx.train.blocks import make_blocks
from dflash_mlx.train.heldout import drafts

ANCHORS = np.array([10, 17, 18, 30])
# How many positions of each block hold the text's own tokens: those of a second pass have a prefix.
GIVEN = {"first pass": [1, 1, 1, 1], "second pass": [3, 1, 4, 2]}


@pytest.fixture(params=DRAFTERS)
def learner(request):
    return tiny_learner(**DRAFTERS[request.param])


@pytest.fixture
def text():
    return random_text()


@pytest.fixture(params=GIVEN)
def given(request):
    return np.array(GIVEN[request.param], np.int32)


def with_features(learner, text, given, change):
    """Logits of the blocks before and after a ``change`` of the features ``[S, F]``."""
    encoding, blocks = encode(learner, text), make_blocks(text, ANCHORS, 8, given)
    changed = encoding._replace(features=change(encoding.features))
    return logits_of(learner, encoding, blocks), logits_of(learner, changed, blocks)


def with_tokens(learner, text, given, where):
    """Logits before and after other tokens come ``where`` says, with the features as they were."""
    encoding = encode(learner, text)
    clean = logits_of(learner, encoding, make_blocks(text, ANCHORS, 8, given))
    text.tokens[where] = (text.tokens[where] + 1) % 97
    return clean, logits_of(learner, encoding, make_blocks(text, ANCHORS, 8, given))


@pytest.mark.parametrize("n", range(len(ANCHORS)))
def test_features_at_the_anchor_and_after_it_are_not_seen(learner, text, given, n):
    def disturb(features):
        noise = mx.array(numbers(1, *features.shape)) * 100
        return mx.where(mx.arange(len(features))[:, None] >= int(ANCHORS[n]), noise, features)

    clean, disturbed = with_features(learner, text, given, disturb)
    assert mx.array_equal(clean[n], disturbed[n])
    if n + 1 < len(ANCHORS):
        # The same noise lies before a later anchor, which must see it.
        assert spread(clean[n + 1], disturbed[n + 1]) > 1e-2


def test_the_feature_before_the_anchor_is_seen(learner, text, given):
    def disturb(features):
        return features + (mx.arange(len(features))[:, None] == int(ANCHORS[1]) - 1)

    clean, disturbed = with_features(learner, text, given, disturb)
    assert mx.array_equal(clean[0], disturbed[0]) and spread(clean[1], disturbed[1]) > 1e-3


@pytest.mark.parametrize("n", range(len(ANCHORS)))
def test_tokens_after_those_given_are_not_seen(learner, text, given, n):
    after = np.arange(len(text.tokens)) >= ANCHORS[n] + given[n]
    clean, changed = with_tokens(learner, text, given, after)
    assert mx.array_equal(clean[n], changed[n])


@pytest.mark.parametrize("n, last", [(1, False), (2, True)])
def test_the_anchor_and_the_last_token_given_are_seen(learner, text, given, n, last):
    clean, changed = with_tokens(learner, text, given, ANCHORS[n] + (given[n] - 1) * last)
    assert mx.array_equal(clean[:n], changed[:n]) and spread(clean[n], changed[n]) > 1e-3


def test_other_blocks_are_not_seen(learner, text, given):
    # Sums of another shape round differently; a leak would be a thousand times larger.
    encoding = encode(learner, text)
    together = logits_of(learner, encoding, make_blocks(text, ANCHORS, 8, given))
    others = np.array([3, 17, 22, 24, 33]), 8, np.array([2, given[1], 5, 1, 3], np.int32)
    assert spread(together[1], logits_of(learner, encoding, make_blocks(text, *others))[1]) < 1e-4
    for n in range(len(ANCHORS)):
        alone = make_blocks(text, ANCHORS[n : n + 1], 8, given[n : n + 1])
        assert spread(together[n], logits_of(learner, encoding, alone)[0]) < 1e-4


@pytest.mark.parametrize("anchor", [0, 1, 10, 31, 39])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_one_block_equals_the_inference_forward(text, kind, anchor):
    learner = tiny_learner(**DRAFTERS[kind])
    encoding, blocks = encode(learner, text), make_blocks(text, np.array([anchor]), 8)
    context = learner.context(encoding.features)
    hidden = learner.hidden(blocks, context)
    logits = learner.logits(hidden)
    drafted = drafts(learner, hidden, logits, blocks, context)
    mx.eval(logits, drafted)

    learner.drafter.stack_context()
    bound = BoundDrafter(learner.drafter, learner.target)
    context = bound.make_context(mx.array([0], mx.int32))
    # The prompt token by token, so that a window wraps around.
    for end in range(1, anchor + 1):
        for cache in context:
            cache.reserve(end + 8)
        bound.write_context(encoding.features[None, end - 1 : end], context)
        for cache in context:
            cache.commit(mx.array([end], mx.int32), mx.array([0], mx.int32))
    for cache in context:
        cache.reserve(anchor + 8)
    proposal = bound.draft(mx.array([int(text.tokens[anchor])]), 8, context)
    inferred = proposal.logits if proposal.logits.ndim == 3 else proposal._parts[1]
    # What follows the prefix is of the second pass, which only the drafts compare.
    first = (learner.config.draft_prefix or 8) - 1
    difference = spread(logits[:, :first], inferred[:, :first])
    assert difference < 1e-5 * max(1.0, mx.abs(inferred).max().item())
    chosen, _ = proposal.follow(mx.argmax(proposal.logits, axis=-1), proposal.logits)
    assert mx.array_equal(chosen, drafted)
