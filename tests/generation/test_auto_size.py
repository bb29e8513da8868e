"""``block_size="auto"``: the same text, sizes that pay, and costs that are kept."""

import copy
import functools
import json
import warnings

import pytest
from mlx_lm.sample_utils import make_sampler
from support.pairs import oracle_pair, random_pair, respond, tokens_of
from support.plain import clear_case, clear_turn
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

import dflash_mlx
from dflash_mlx import UserError, stream_generate
from dflash_mlx.engine import calibration, tuning
from dflash_mlx.engine.costs import CostTable
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.generation.response import report

TOKENIZER = byte_tokenizer()
N = 150
GREEDY = Sampling()
model = functools.cache(tiny_model)
AUTO = {"block_size": "auto"}


@functools.cache
def case(family="llama", sampling=GREEDY):
    return clear_case(model(family), 20, N + 40, sampling)


def costs(prices, acceptance=None):
    """A table in which a round of so many rows costs so many plain steps, each 10 ms."""
    rounds = {rows: [0.01 * price] * 2 for rows, price in prices.items()}
    return CostTable([512, 4096], rounds, acceptance=acceptance)


CHEAP = {rows: 1 + 0.02 * (rows - 1) for rows in range(1, 9)}
DEAR = {rows: float(rows) for rows in range(1, 9)}


def run(counts, prices, n=N, acceptance=None, **options):
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth, counts, 8) as pair:
        pair.costs = costs(prices, acceptance)
        # Real times would correct the made-up ones.
        pair.costs.learn = lambda *args: None
        responses = respond(pair, TOKENIZER, prompt, n, **AUTO, **options)
    assert tokens_of(responses) == truth[:n]
    return responses[-1]


def test_good_drafts_are_drafted():
    last = run([7], CHEAP)
    assert last.statistics.rounds[8] > 0.8 * last.statistics.total
    assert last.tau > 6
    assert not last.statistics.switched_off
    assert "times the speed without drafting" in report(last)


def test_wrong_drafts_are_hardly_drafted():
    last = run([0], {rows: 0.8 + 0.2 * rows for rows in range(1, 9)}, acceptance=0.1)
    assert last.statistics.rounds[1] > 0.85 * last.statistics.total
    assert last.statistics.switched_off
    assert "switched off for most of this text" in report(last).splitlines()[-1]


def test_where_nothing_can_pay_nothing_is_drafted():
    last = run([7], DEAR)
    assert dict(last.statistics.rounds) == {1: N}
    final = report(last).splitlines()[-1]
    assert final.endswith("switched off for the whole text: no block size promised to pay.")


def test_drafts_never_accepted_hint_at_the_wrong_drafter():
    fits, misfits = run([1, 0, 0], CHEAP), run([0], CHEAP)
    assert misfits.statistics.misfit and "does not seem to fit this target" in report(misfits)
    assert not fits.statistics.misfit and "does not seem" not in report(fits)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("counts", [(0,), (7,), (3, 0, 1)])
def test_text_is_that_of_plain_decoding(family, counts):
    prompt, truth = case(family)
    with oracle_pair(model(family), prompt + truth, counts, 8) as pair:
        assert tokens_of(respond(pair, TOKENIZER, prompt, N, **AUTO)) == truth[:N]
        assert sorted(pair.costs.rounds) == list(range(1, 9))


def test_sampled_text_is_that_of_plain_sampling():
    sampling = Sampling(temp=0.9, top_p=0.95, seed=11)
    prompt, truth = case("llama", sampling)
    with oracle_pair(model(), prompt + truth, (5, 0, 2), 8) as pair:
        options = {"temp": 0.9, "top_p": 0.95, "seed": 11}
        assert tokens_of(respond(pair, TOKENIZER, prompt, N, **AUTO, **options)) == truth[:N]
        assert set(pair.costs.choices) == {"greedy", "temp+top_p"}


@pytest.mark.parametrize(
    "options",
    [
        {"logits_processors": [lambda tokens, logits: logits]},
        {"sampler": make_sampler(0.0)},
        {"repetition_penalty": 1.0},
        {"logprobs": True},
    ],
    ids=["processors", "sampler", "penalty", "logprobs"],
)
def test_other_ways_of_choosing(options):
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth, (3, 0, 7), 8) as pair:
        before = copy.deepcopy(dflash_mlx.tune(pair))
        responses = respond(pair, TOKENIZER, prompt, 60, **AUTO, **options)
        assert tokens_of(responses) == truth[:60]
        if "sampler" in options or "logits_processors" in options:
            # Their times are the user's own, and nobody else's business.
            assert pair.costs == before


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


@pytest.mark.parametrize(
    "options",
    [{"max_kv_size": 16}, {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 40}],
    ids=["rotating", "quantized"],
)
def test_other_caches_than_the_targets_own(options):
    prompt, wide = case()[0], tiny_model("qwen3", head_dim=32)
    with random_pair(wide) as pair:
        before = copy.deepcopy(dflash_mlx.tune(pair))
        plain = respond(pair, TOKENIZER, prompt, 80, draft=False, **options)
        auto = respond(pair, TOKENIZER, prompt, 80, **AUTO, **options)
        assert tokens_of(auto) == tokens_of(plain)
        assert auto[-1].statistics.auto and pair.costs == before


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


@pytest.mark.parametrize("size", ["big", 0, 9, 2.5, None])
def test_other_sizes_are_refused(size):
    with random_pair(model()) as pair:
        if size is None:
            with pytest.raises(UserError, match="No drafter"):
                dflash_mlx.tune(dflash_mlx.Pair(pair.target))
        else:
            with pytest.raises(UserError, match=r"'auto' or between 1 and 8.*not"):
                stream_generate(pair, TOKENIZER, [1], block_size=size)


def test_windows_bound_the_block():
    prompt, truth = case("gpt_oss")
    with oracle_pair(model("gpt_oss"), prompt + truth, (40,), 48) as pair:
        with pytest.raises(UserError, match=r"between 1 and 32, the most that a rotating cache"):
            stream_generate(pair, TOKENIZER, prompt, block_size=33)
        responses = respond(pair, TOKENIZER, prompt, N, **AUTO)
        assert tokens_of(responses) == truth[:N]
        assert pair.costs.sizes[-1] == 32


def test_one_token_needs_no_measuring(monkeypatch):
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth, (3,), 8) as pair:
        for n in (0, 1):
            responses = respond(pair, TOKENIZER, prompt, n, **AUTO)
            assert "switched off" not in report(responses[-1])
        assert pair.costs is None


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """An empty place for costs, and a count of calibrations."""
    calls = []

    def counted(*args):
        calls.append(args)
        return calibration.calibrate(*args)

    monkeypatch.setattr(tuning, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(tuning, "calibrate", counted)
    return tmp_path, calls


def tuned(family="llama", **changes):
    with random_pair(model(family), **changes) as pair:
        return dflash_mlx.tune(pair), tuning.table_path(pair)


def test_costs_are_measured_once_a_machine_and_pair(folder):
    _, calls = folder
    table, path = tuned()
    assert path.is_file() and len(calls) == 1
    assert tuned() == (table, path) and len(calls) == 1
    # Other weights of the same shapes cost the same; another drafter does not.
    tuned(seed=1)
    assert len(calls) == 1
    assert tuned(intermediate_size=64)[1] != path and len(calls) == 2


def test_tuning_again_measures_again(folder):
    _, calls = folder
    with random_pair(model()) as pair:
        before = dflash_mlx.tune(pair)
        after = dflash_mlx.tune(pair, again=True)
        assert pair.costs is after is not before
    assert len(calls) == 2


BROKEN = {
    "empty": "",
    "cut": '{"format": 1, "key": {',
    "no object": "[1, 2]",
    "another format": '{"format": 0}',
    "another key": '{"format": 1, "key": {"device": "other"}, "table": {}}',
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_damaged_or_foreign_file_is_measured_again(folder, content):
    _, calls = folder
    _, path = tuned()
    path.write_text(content)
    again, _ = tuned()
    assert len(calls) == 2
    assert CostTable.from_dict(json.loads(path.read_text())["table"]) == again


def test_a_damaged_table_is_measured_again(folder):
    _, calls = folder
    _, path = tuned()
    content = json.loads(path.read_text())
    content["table"]["rounds"]["1"] = [-1, 2]
    path.write_text(json.dumps(content))
    tuned()
    assert len(calls) == 2


def test_a_folder_that_cannot_be_written_is_warned_of(folder):
    place, _ = folder
    (place / "costs").write_text("a file where a folder should be")
    prompt, truth = case()
    with (
        oracle_pair(model(), prompt + truth, (3,), 8) as pair,
        pytest.warns(UserWarning, match="cannot be stored"),
    ):
        assert tokens_of(respond(pair, TOKENIZER, prompt, 20, **AUTO)) == truth[:20]


def test_what_a_text_teaches_is_stored(folder):
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth, (7,), 8) as pair:
        dflash_mlx.tune(pair)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            respond(pair, TOKENIZER, prompt, N, **AUTO)
        stored = json.loads(tuning.table_path(pair).read_text())["table"]
        assert stored["acceptance"] == pair.costs.acceptance
        assert not list(tuning.table_path(pair).parent.glob(".*"))


def test_rounds_correct_the_table():
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth, (7,), 8) as pair:
        pair.costs = costs(CHEAP)
        before = pair.costs.seconds(8, 100)
        respond(pair, TOKENIZER, prompt, N, **AUTO)
        # A tiny model's rounds take less than the 11 ms of the table.
        assert pair.costs.seconds(8, 100) < before


@pytest.mark.pair
def test_the_embedded_pair_writes_the_targets_own_text(target_folder):
    pair, tokenizer = dflash_mlx.load()
    prompt = tokenizer.encode("def fibonacci(n):")
    auto, plain = (
        [r.token for r in stream_generate(pair, tokenizer, prompt, 40, **options)]
        for options in (AUTO, {"draft": False})
    )
    assert auto == plain
