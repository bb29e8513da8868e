"""Features on disk: the same numbers within a bound, whole or not there."""

import mlx.core as mx
import pytest
from support.disk import FULL, files_up_to, listing
from support.training import encode, random_text, tiny_learner

from dflash_mlx.errors import UserError
from dflash_mlx.train.feature_cache import FeatureCache

TEXTS = [random_text(seed=i) for i in range(8)]


@pytest.fixture
def learner():
    return tiny_learner()


def count(folder):
    return len(list(folder.iterdir()))


def test_the_cache_is_bounded(learner, tmp_path):
    folder = tmp_path / "features"
    expected = [encode(learner, text).features for text in TEXTS[:4]]
    limit = int(2.5 * expected[0].nbytes)
    for _ in range(2):
        source = FeatureCache(learner, folder, limit)
        for text, features in zip(TEXTS, expected, strict=False):
            assert mx.array_equal(source(text).features, features)
        assert count(folder) == 2
    assert sum(map(len, listing(folder).values())) <= limit


def test_processes_share_the_cache_and_the_bound(learner, tmp_path):
    limit = 5 * encode(learner, TEXTS[0]).features.nbytes
    for epoch in range(2):
        sources = [FeatureCache(learner, tmp_path, limit, rank, 2) for rank in range(2)]
        for i, text in enumerate(TEXTS):
            sources[(i + epoch) % 2](text)
        # Two of each; half of what is left is too little for any.
        assert count(tmp_path) == 4
    learner.encode = None
    for text in TEXTS[:4]:
        sources[0](text), sources[1](text)


def test_a_smaller_bound_adds_nothing_and_removes_nothing(learner, tmp_path):
    for limit, texts in ((10**6, TEXTS[:2]), (100, TEXTS[:4])):
        source = FeatureCache(learner, tmp_path, limit)
        for text in texts:
            source(text)
        assert count(tmp_path) == 2


def test_distillation_keeps_the_hidden_states_and_takes_nothing_else(learner, tmp_path):
    FeatureCache(learner, tmp_path, 10**9)(TEXTS[0])
    distils = tiny_learner(objective={"loss": "kl"})
    first, second = (FeatureCache(distils, tmp_path, 10**9)(TEXTS[0]) for _ in range(2))
    assert first.hidden.shape == (40, 32) and mx.array_equal(first.hidden, second.hidden)
    assert count(tmp_path) == 2


def test_damaged_features_are_named(learner, tmp_path):
    FeatureCache(learner, tmp_path, 10**9)(TEXTS[0])
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UserError, match=f"{file.name} is damaged"):
        FeatureCache(learner, tmp_path, 10**9)(TEXTS[0])


def test_an_unfinished_file_is_not_read(learner, tmp_path):
    FeatureCache(learner, tmp_path, 10**9)(TEXTS[0])
    [file] = tmp_path.iterdir()
    file.rename(file.with_suffix(".partial1.safetensors"))
    # Only one process removes it, and the others do not count it.
    for rank, left in ((1, 1), (0, 0)):
        FeatureCache(learner, tmp_path, 10**9, rank, 2)
        assert count(tmp_path) == left


def test_features_are_whole_or_not_there(learner, tmp_path):
    with files_up_to(1000), pytest.raises(UserError, match=FULL):
        FeatureCache(learner, tmp_path, 10**9)(TEXTS[0])
    assert not listing(tmp_path)
    expected = encode(learner, TEXTS[0]).features
    for _ in range(2):
        source = FeatureCache(learner, tmp_path, 10**9)
        assert mx.array_equal(source(TEXTS[0]).features, expected)
