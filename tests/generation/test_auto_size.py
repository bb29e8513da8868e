"""``block_size="auto"``: the same text, sizes that pay, and costs that are kept."""

import copy
import dataclasses
import functools
import json
import os
import signal
import warnings
from importlib.metadata import version

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.sample_utils import make_sampler
from support.pairs import oracle_pair, random_pair, respond, tiny_drafter, tokens_of
from support.plain import clear_case, clear_turn
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

import dflash_mlx
from dflash_mlx import UserError, stream_generate
from dflash_mlx.engine import cost_file, session
from dflash_mlx.engine.costs import CostTable
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.generation import auto_size
from dflash_mlx.generation.response import report
from dflash_mlx.loading.loader import make_pair

TOKENIZER = byte_tokenizer()
N = 150
GREEDY = Sampling()
model = functools.cache(tiny_model)
AUTO = {"block_size": "auto"}


@functools.cache
def case(family="llama", sampling=GREEDY):
    return clear_case(model(family), 20, N + 40, sampling)


def made_up(prices, acceptance=None):
    """A table in which a round of a size costs so many plain steps, each 10 ms."""
    rounds = {size: [0.01 * price] * 2 for size, price in prices.items()}
    return CostTable([512, 4096], {"greedy": rounds}, acceptance=acceptance)


CHEAP = {size: 1 + 0.02 * (size - 1) for size in range(1, 9)}
SLIGHT = {size: 0.8 + 0.2 * size for size in range(1, 9)}
DEAR = {size: float(size) for size in range(1, 9)}


def run(counts, prices, acceptance=None):
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth, counts, 8) as pair:
        pair.costs = made_up(prices, acceptance)
        # Real times would correct the made-up ones.
        pair.costs.learn = lambda *args: None
        responses = respond(pair, TOKENIZER, prompt, N, **AUTO)
    assert tokens_of(responses) == truth[:N]
    return responses[-1]


@pytest.mark.parametrize(
    ("counts", "prices", "acceptance", "plain", "said"),
    [
        ([7], CHEAP, None, (0, 0.2), "times the speed without drafting"),
        ([1, 0, 0], CHEAP, None, (0, 1), ""),
        ([0], CHEAP, None, (0, 1), "does not seem to fit this target"),
        ([0], SLIGHT, 0.1, (0.85, 0.999), "switched off for most of this text"),
        ([7], DEAR, None, (1, 1), "switched off for the whole text: no block size promised to pay"),
    ],
    ids=["good", "bad", "misfit", "wrong", "dear"],
)
def test_drafts_that_pay_are_drafted_and_others_are_not(counts, prices, acceptance, plain, said):
    last = run(counts, prices, acceptance)
    least, most = plain
    assert least <= last.statistics.rounds[1] / last.statistics.total <= most
    assert last.statistics.switched_off == (least > 0.8) == ("switched off" in report(last))
    assert last.statistics.misfit == ("not seem to fit" in report(last)) == ("not seem" in said)
    assert said in report(last)


@pytest.mark.parametrize(
    ("family", "counts"),
    [("llama", (0,)), ("llama", (7,)), ("llama", (3, 0, 1)), ("gemma3_text", (3, 0, 1))],
)
def test_text_is_that_of_plain_decoding(family, counts):
    prompt, truth = case(family)
    with oracle_pair(model(family), prompt + truth, counts, 8) as pair:
        assert tokens_of(respond(pair, TOKENIZER, prompt, N, **AUTO)) == truth[:N]
        assert pair.costs.sizes == list(range(1, 9))


def test_sampled_text_is_that_of_plain_sampling_and_teaches_its_own_costs():
    prompt, truth = case("llama", Sampling(temp=0.9, top_p=0.95, seed=11))
    with oracle_pair(model(), prompt + truth, (7,), 8) as pair:
        options = {"temp": 0.9, "top_p": 0.95, "seed": 11}
        before = dflash_mlx.tune(pair).rounds.keys() - {"temp+top_p"}
        assert tokens_of(respond(pair, TOKENIZER, prompt, N, **AUTO, **options)) == truth[:N]
        assert pair.costs.rounds.keys() == before | {"temp+top_p"}
        assert pair.cost_file.read().rounds.keys() == pair.costs.rounds.keys()


# Their times are nobody else's business.
PRIVATE = {
    "processors": {"logits_processors": [lambda tokens, logits: logits]},
    "sampler": {"sampler": make_sampler(0.0)},
    "rotating": {"max_kv_size": 16},
    "quantized": {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 40},
}
OPTIONS = PRIVATE | {"penalty": {"repetition_penalty": 1.3}, "logprobs": {"logprobs": True}}


@pytest.mark.parametrize("name", OPTIONS)
def test_other_ways_of_choosing_and_other_caches(name):
    prompt, wide = case()[0], tiny_model("qwen3", head_dim=32)
    with random_pair(wide) as pair:
        before = copy.deepcopy(dflash_mlx.tune(pair))
        plain = respond(pair, TOKENIZER, prompt, 80, draft=False, **OPTIONS[name])
        auto = respond(pair, TOKENIZER, prompt, 80, **AUTO, **OPTIONS[name])
        assert tokens_of(auto) == tokens_of(plain)
        assert auto[-1].statistics.auto and (pair.costs == before) == (name in PRIVATE)


def test_a_conversation_in_a_prompt_cache():
    prompt, truth = case()
    turn, answer = clear_turn(model(), prompt + truth[:40], 6, 30)
    whole = [*prompt, *truth[:40], *turn, *answer]
    with oracle_pair(model(), whole, (3, 0, 7), 8) as pair:
        cache = pair.make_prompt_cache()
        first = respond(pair, TOKENIZER, prompt, 40, prompt_cache=cache, **AUTO)
        second = respond(pair, TOKENIZER, turn, 30, prompt_cache=cache, **AUTO)
    assert tokens_of(first) == truth[:40]
    assert tokens_of(second) == answer


def test_auto_is_the_default_with_a_drafter():
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth, (3,), 8) as pair:
        *_, last = stream_generate(pair, TOKENIZER, prompt, 30)
        assert last.statistics.auto and last.statistics.gain > 0
        *_, last = stream_generate(pair, TOKENIZER, prompt, 30, block_size=4)
        assert not last.statistics.auto and last.statistics.gain is None
        *_, last = stream_generate(pair, TOKENIZER, prompt, 30, draft=False, block_size="auto")
        assert dict(last.statistics.rounds) == {1: 30} and not last.statistics.auto
    alone = dflash_mlx.Pair(pair.target.__class__(model()))
    *_, last = stream_generate(alone, TOKENIZER, prompt, 5, block_size="auto")
    assert dict(last.statistics.rounds) == {1: 5}
    with pytest.raises(UserError, match="No drafter"):
        dflash_mlx.tune(alone)


def test_windows_bound_the_block():
    prompt, truth = case("gpt_oss")
    with oracle_pair(model("gpt_oss"), prompt + truth, (40,), 48) as pair:
        with pytest.raises(UserError, match=r"between 1 and 32, the most that a rotating cache"):
            stream_generate(pair, TOKENIZER, prompt, block_size=33)
        responses = respond(pair, TOKENIZER, prompt, N, **AUTO)
        assert tokens_of(responses) == truth[:N]
        assert pair.costs.sizes[-1] == 32


def test_one_token_needs_no_measuring():
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth, (3,), 8) as pair:
        for n in (0, 1):
            responses = respond(pair, TOKENIZER, prompt, n, **AUTO)
            assert "switched off" not in report(responses[-1])
        assert pair.costs is None


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """An empty place for costs, and a list of calibrations, which measure nothing."""
    calls = []

    def counted(*args):
        calls.append(args)
        return made_up(CHEAP)

    monkeypatch.setattr(cost_file, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(auto_size, "calibrate", counted)
    return tmp_path, calls


def tuned(target=None, drafter=None, **changes):
    with make_pair(target or tiny_model(), drafter or tiny_drafter(**changes)) as pair:
        return dflash_mlx.tune(pair), pair.cost_file.path


def test_costs_are_measured_once_a_machine_and_pair(folder):
    _, calls = folder
    table, path = tuned()
    assert path.is_file() and len(calls) == 1
    assert tuned() == (table, path) and len(calls) == 1
    # Other weights of the same shapes cost the same.
    assert tuned(seed=1) == (table, path) and len(calls) == 1


def test_tuning_again_measures_again_whoever_is_at_work(folder):
    _, calls = folder
    with random_pair(model()) as pair:
        before = dflash_mlx.tune(pair)
        running = stream_generate(pair, TOKENIZER, case()[0], N, **AUTO)
        next(running)
        after = dflash_mlx.tune(pair, again=True)
        # What the text has taught is of the costs before.
        *_, _ = running
        assert pair.costs is after is not before
        assert pair.cost_file.read() == after == made_up(CHEAP) != before
    assert len(calls) == 2


def damaged(content):
    content["table"]["rounds"]["greedy"]["1"] = [-1, 2]
    return content


BROKEN = {
    "empty": lambda content: "",
    "cut": lambda content: json.dumps(content)[:-20],
    "no object": lambda content: "[1, 2]",
    "another format": lambda content: json.dumps(content | {"format": 2}),
    "another key": lambda content: json.dumps(content | {"key": {"device": "other"}}),
    "a damaged table": lambda content: json.dumps(damaged(content)),
}


@pytest.mark.parametrize("break_", BROKEN.values(), ids=BROKEN)
def test_a_damaged_or_foreign_file_is_measured_again(folder, break_):
    _, calls = folder
    _, path = tuned()
    path.write_text(break_(json.loads(path.read_text())))
    again, _ = tuned()
    assert len(calls) == 2
    assert CostTable.from_dict(json.loads(path.read_text())["table"]) == again


def test_a_folder_that_cannot_be_written_is_warned_of(folder):
    place, _ = folder
    (place / "costs").write_text("a file where a folder should be")
    prompt, truth = case()
    with (
        oracle_pair(model(), prompt + truth, (3,), 8) as pair,
        pytest.warns(UserWarning, match="cannot be stored"),
    ):
        assert tokens_of(respond(pair, TOKENIZER, prompt, 20, **AUTO)) == truth[:20]


def test_uncertain_costs_are_said_to_be_and_not_stored(folder, monkeypatch):
    """They serve the pair that they were measured for."""
    _, calls = folder

    def uncertain(*args):
        calls.append(args)
        return dataclasses.replace(made_up(CHEAP), uncertain=True)

    monkeypatch.setattr(auto_size, "calibrate", uncertain)
    prompt, truth = case()
    for measured in (1, 2):
        with oracle_pair(model(), prompt + truth, (7,), 8) as pair:
            with pytest.warns(UserWarning, match="uncertain"):
                responses = respond(pair, TOKENIZER, prompt, N, **AUTO)
            assert tokens_of(responses) == truth[:N] and responses[-1].statistics.auto
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                respond(pair, TOKENIZER, prompt, 20, **AUTO)
            assert pair.costs.acceptance is not None and pair.cost_file is None
        assert len(calls) == measured
    assert not list(folder[0].rglob("*.json"))


def test_what_an_interrupted_text_has_taught_is_kept(folder, monkeypatch):
    """Whenever it comes: here, while the prompt cache is completed."""
    prompt, truth = case()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted(*args):
        signal.raise_signal(signal.SIGINT)
        return hand_back(*args)

    hand_back = session.hand_back
    monkeypatch.setattr(session, "hand_back", interrupted)
    try:
        with oracle_pair(model(), prompt + truth, (7,), 8) as pair:
            options = {"prompt_cache": pair.make_prompt_cache(), **AUTO}
            responses = stream_generate(pair, TOKENIZER, prompt, N, **options)
            for _ in range(40):
                next(responses)
            with pytest.raises(KeyboardInterrupt):
                responses.close()
            assert pair.costs.acceptance is not None and pair.cost_file.read() == pair.costs
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_a_text_teaches_is_stored(folder):
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth, (7,), 8) as pair:
        before = dflash_mlx.tune(pair).column(100)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            respond(pair, TOKENIZER, prompt, N, **AUTO)
        assert pair.cost_file.read() == pair.costs
        assert pair.costs.acceptance is not None
        assert pair.costs.column(100) != before


def test_models_are_identified_and_files_read_once(folder, monkeypatch):
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth, (7,), 8) as pair:
        dflash_mlx.tune(pair)
        monkeypatch.setattr(auto_size, "fingerprint", None)
        monkeypatch.setattr(cost_file, "read_json_object", None)
        for _ in range(2):
            respond(pair, TOKENIZER, prompt, 30, **AUTO)


def quantized(module, bits):
    def can_be(path, part):
        return hasattr(part, "to_quantized") and part.weight.shape[-1] % 32 == 0

    nn.quantize(module, 32, bits, class_predicate=can_be)
    return module


def test_what_costs_depend_on(folder, monkeypatch):
    paths = [tuned()[1], tuned(block_size=4)[1], tuned(intermediate_size=64)[1]]
    for bits in (4, 8):
        paths.append(tuned(quantized(tiny_model(), bits))[1])
        paths.append(tuned(drafter=quantized(tiny_drafter(), bits))[1])
    versions = {name: version(name) for name in ("mlx", "mlx-lm", "dflash-mlx")}
    device = mx.device_info()
    for place, name, other in [
        *((auto_size, "version", (versions | {package: "99"}).get) for package in versions),
        (mx, "device_info", lambda: device | {"device_name": "another"}),
        (mx, "device_info", lambda: device | {"architecture": "another"}),
        (os, "cpu_count", lambda: 999),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, other)
            paths.append(tuned()[1])
    assert len(set(paths)) == len(paths) == 13


@pytest.mark.pair
def test_the_embedded_pair_writes_the_targets_own_text(target_folder):
    pair, tokenizer = dflash_mlx.load()
    prompt = tokenizer.encode("def fibonacci(n):")
    auto, plain = (
        [r.token for r in stream_generate(pair, tokenizer, prompt, 40, **options)]
        for options in (AUTO, {"draft": False})
    )
    assert auto == plain
