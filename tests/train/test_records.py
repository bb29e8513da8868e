"""The log, the chart, and the feature cache."""

import json

import mlx.core as mx
import pytest
from support.training import random_text, tiny_learner

from dflash_mlx.errors import UserError
from dflash_mlx.train.chart import HEIGHT, WIDTH, chart
from dflash_mlx.train.disk import Log
from dflash_mlx.train.feature_cache import FeatureCache


def test_a_log_drops_what_will_come_again(tmp_path):
    path = tmp_path / "log.jsonl"
    log = Log(path)
    for step in range(1, 5):
        log.add(step=step, loss=1 / step)
    path.write_text(path.read_text() + '{"step": 5, "lo')
    again = Log(path, 2)
    again.add(step=3, tau=1.5)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert entries == again.entries
    assert again.curve("loss") == [(1, 1.0), (2, 0.5)] and again.curve("tau") == [(3, 1.5)]


@pytest.mark.parametrize("damage", [b'{"a', b"[1]", b"{}", b"\xff"])
def test_a_damaged_log_is_refused(damage, tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b'{"step": 1}\n' + damage + b"\n")
    with pytest.raises(UserError, match="damaged in line 2"):
        Log(tmp_path / "log.jsonl", 3)


def test_a_new_log_is_empty(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 0}\n{"step": 1}\n')
    assert Log(tmp_path / "log.jsonl").entries == []


def test_chart():
    lines = chart("τ", [(0, 1.0), (10, 2.0), (20, 3.0)]).split("\n")
    assert lines[0] == "τ" and len(lines) == HEIGHT + 2
    assert lines[1] == "3 │  █" and lines[-2] == "1 │▁██" and lines[-1].endswith("step 0 to 20")


def test_chart_of_many_points_is_averaged_into_its_width():
    lines = chart("loss", [(i, float(i % 2)) for i in range(1000)]).split("\n")
    assert max(map(len, lines)) <= WIDTH + 8


def test_chart_of_a_constant_and_of_nothing():
    for value in (2.0, 0.0, -1e-300):
        lines = chart("x", [(1, value), (2, value)]).split("\n")
        # One label, where the bars are.
        assert lines[-2] == f"{value:.4g} │▁▁"
        assert {line.strip() for line in lines[1:-2]} == {"│"}
    assert "no values" in chart("x", [])


def test_the_feature_cache_is_bounded(tmp_path):
    learner, folder = tiny_learner(), tmp_path / "features"
    texts = [random_text(seed=i) for i in range(4)]
    expected = [learner.encode(mx.array(text.tokens)).features for text in texts]
    size = expected[0].nbytes
    for _ in range(2):
        source = FeatureCache(learner, folder, int(2.5 * size))
        for text, taps in zip(texts, expected, strict=True):
            assert mx.array_equal(source(text).features, taps)
        assert len(list(folder.iterdir())) == 2
    assert sum(f.stat().st_size for f in folder.iterdir()) <= 2.5 * size


def test_processes_share_the_features_and_the_bound(tmp_path):
    learner, texts = tiny_learner(), [random_text(seed=i) for i in range(8)]
    size = learner.encode(mx.array(texts[0].tokens)).features.nbytes
    limit = 5 * size
    for epoch in range(2):
        sources = [FeatureCache(learner, tmp_path, limit, rank, 2) for rank in range(2)]
        for i, text in enumerate(texts):
            sources[(i + epoch) % 2](text)
        # Two of each; half of what is left is too little for any.
        assert len(list(tmp_path.iterdir())) == 4
    learner.encode = None
    for text in texts[:4]:
        sources[0](text), sources[1](text)


def test_a_smaller_bound_adds_nothing_and_removes_nothing(tmp_path):
    learner, texts = tiny_learner(), [random_text(seed=i) for i in range(4)]
    for limit in (10**6, 100):
        source = FeatureCache(learner, tmp_path, limit)
        for text in texts[:2] if limit == 10**6 else texts:
            source(text)
        assert len(list(tmp_path.iterdir())) == 2


def test_features_of_another_kind_are_not_taken(tmp_path):
    text = random_text()
    FeatureCache(tiny_learner(), tmp_path, 10**9)(text)
    assert FeatureCache(tiny_learner(objective={"loss": "kl"}), tmp_path, 10**9)(text).hidden.any()


def test_damaged_features_are_named(tmp_path):
    learner, text = tiny_learner(), random_text()
    FeatureCache(learner, tmp_path, 10**9)(text)
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UserError, match="is damaged"):
        FeatureCache(learner, tmp_path, 10**9)(text)


def test_an_unfinished_file_is_not_read(tmp_path):
    learner, text = tiny_learner(), random_text()
    FeatureCache(learner, tmp_path, 10**9)(text)
    [file] = tmp_path.iterdir()
    file.rename(file.with_suffix(".partial1.safetensors"))
    # Only one process removes it, and the others do not count it.
    FeatureCache(learner, tmp_path, 10**9, 1, 2)
    assert len(list(tmp_path.iterdir())) == 1
    FeatureCache(learner, tmp_path, 10**9)
    assert not list(tmp_path.iterdir())


def test_distillation_keeps_the_hidden_states(tmp_path):
    learner = tiny_learner(objective={"loss": "kl"})
    text = random_text()
    first = FeatureCache(learner, tmp_path, 10**9)(text)
    second = FeatureCache(learner, tmp_path, 10**9)(text)
    assert first.hidden.shape == (40, 32) and mx.array_equal(first.hidden, second.hidden)
