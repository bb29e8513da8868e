"""A whole text at once: the features and logits of a forward with caches."""

import mlx.core as mx
import pytest
from support.tiny import FAMILIES, tiny_model

from dflash_mlx.target.target import Target


@pytest.mark.parametrize("family", FAMILIES)
def test_features_and_logits_are_those_of_a_forward(family):
    model = tiny_model(family)
    untapped = Target(model)
    target = Target(model, (0, untapped.num_layers - 1), untapped.family)
    ids = mx.random.randint(0, 97, (1, 12), key=mx.random.key(0))
    logits, expected = target.forward(ids, target.make_cache())
    hidden, features = target.encode(ids)
    assert mx.allclose(features, expected, rtol=1e-3, atol=1e-3)
    assert mx.allclose(target.head(hidden), logits, rtol=1e-3, atol=1e-3)
