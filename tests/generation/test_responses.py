"""What responses say about their tokens and rounds, and how rounds are queued and read."""

import functools

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors
from support.pairs import oracle_pair, random_pair, respond, scripted, tokens_of
from support.plain import clear_case, plain_greedy
from support.tiny import VOCAB, tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import tune
from dflash_mlx.engine.queue import RoundQueue
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.engine.statistics import Statistics
from dflash_mlx.generation.response import report

B = 4
TOKENIZER = byte_tokenizer()
VECTORS = {"none": [0], "all": [3], "one": [1], "mixed": [2, 0, 3, 1], "rare": [0, 0, 0, 3]}
model = functools.cache(tiny_model)


@functools.cache
def case(length=9):
    return clear_case(model(), length, 60, Sampling())


def run(n, counts, block_size=B, **options):
    prompt, truth = case()
    with oracle_pair(model(), prompt + truth, counts, B) as pair:
        responses = respond(pair, TOKENIZER, prompt, n, block_size=block_size, **options)
    return responses, truth


@pytest.mark.parametrize("counts", VECTORS.values(), ids=VECTORS)
@pytest.mark.parametrize("block_size", range(1, B + 1))
def test_rounds_are_told_as_scripted(counts, block_size):
    n = 30
    responses, truth = run(n, counts, block_size)
    assert tokens_of(responses) == truth[:n]

    expected, rounds = [], 0
    while len(expected) < n:
        # With one row nothing is drafted, so no script is asked.
        accepted = min(scripted(counts)(rounds), block_size - 1)
        rounds += 1
        tau = (sum(a + 1 for a in _script(counts, rounds, block_size))) / rounds
        expected += [(j < accepted, accepted, tau) for j in range(accepted + 1)]
    told = [(r.from_draft, r.accepted, r.tau) for r in responses]
    assert told == [(f, a, pytest.approx(t)) for f, a, t in expected[:n]]
    assert {r.block_size for r in responses} == {block_size}

    statistics = responses[-1].statistics
    script = _script(counts, rounds, block_size)
    assert statistics.total == rounds
    assert statistics.rounds == {block_size: rounds}
    assert statistics.accepted == {k: script.count(k) for k in set(script)}
    rates = [sum(a >= j for a in script) / rounds for j in range(1, block_size)]
    assert statistics.acceptance() == pytest.approx(rates)


def _script(counts, rounds, block_size):
    return [min(scripted(counts)(r), block_size - 1) for r in range(rounds)]


def test_a_position_counts_only_in_rounds_that_reached_it():
    statistics = Statistics()
    for block_size, accepted in ((4, 3), (4, 0), (2, 1), (1, 0)):
        statistics.add(block_size, accepted)
    assert statistics.acceptance() == [2 / 3, 1 / 2, 1 / 2]
    assert statistics.tau == 2.0
    assert "1 of block 2, 2 of block 4" in statistics.summary()


def test_a_gain_is_not_estimated_above_the_tokens_of_a_round():
    statistics = Statistics(plain_seconds=3.0)
    assert statistics.gain is None
    statistics.add(4, 1)
    statistics.seconds = 2.0
    assert statistics.gain == 1.5
    statistics.seconds = 1.0
    assert statistics.gain == statistics.tau == 2.0


def test_plain_decoding_tells_that_nothing_was_drafted():
    responses, truth = run(10, [3], None, draft=False)
    assert tokens_of(responses) == truth[:10]
    assert {(r.from_draft, r.accepted, r.block_size, r.tau) for r in responses} == {
        (False, 0, 1, 1.0)
    }
    assert "plain decoding" in report(responses[-1])


@pytest.mark.parametrize("n", [8, 64, 256, 257])
def test_speculation_runs_whatever_the_length(n):
    with random_pair(model()) as pair:
        responses = respond(pair, TOKENIZER, case()[0], n)
    assert {r.block_size for r in responses} == {8}
    assert len(tokens_of(responses)) == n
    assert "of block 8" in report(responses[-1])


def test_counts_and_speeds():
    prompt, _ = case()
    responses, _ = run(12, [2, 0])
    assert [r.generation_tokens for r in responses] == list(range(1, 13))
    assert {r.prompt_tokens for r in responses} == {len(prompt)}
    for r in responses:
        assert r.prompt_tps > 0
        assert r.generation_tps > 0
        assert r.peak_memory > 0
    assert "Generation: 12 tokens" in report(responses[-1])


def test_no_token_no_rounds():
    (response,), _ = run(0, [3])
    assert (response.token, response.text, response.tau) == (None, "", 0.0)
    assert report(response)


@pytest.mark.parametrize("counts", VECTORS.values(), ids=VECTORS)
@pytest.mark.parametrize("penalized", [False, True])
def test_logprobs_equal_mlx_lms(counts, penalized):
    prompt, truth = case()
    penalties = {"logit_bias": {5: 1.0, 7: -2.0}} if penalized else {}
    steps = generate_step(
        mx.array(prompt),
        model(),
        max_tokens=20,
        logits_processors=make_logits_processors(**penalties),
    )
    plain = [(int(token), logprobs) for token, logprobs in steps]
    truth = [token for token, _ in plain]
    with oracle_pair(model(), prompt + truth, counts, B) as pair:
        responses = respond(pair, TOKENIZER, prompt, 20, logprobs=True, **penalties)
    assert tokens_of(responses) == truth
    for response, (_, logprobs) in zip(responses, plain, strict=True):
        assert response.logprobs.shape == (VOCAB,)
        assert response.logprobs.dtype == mx.float32
        assert mx.allclose(response.logprobs, logprobs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{"temp": 0.8}, {"temp": 0.8, "top_k": 3}, {"temp": 0.8, "acceptance": "rejection"}],
    ids=str,
)
def test_logprobs_are_those_before_sampling(options):
    prompt, _ = case()
    with random_pair(model()) as pair:
        responses = respond(pair, TOKENIZER, prompt, 12, logprobs=True, seed=3, **options)
    tokens = tokens_of(responses)
    logits = model()(mx.array([prompt + tokens]))[0, len(prompt) - 1 : -1]
    expected = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    got = mx.stack([r.logprobs for r in responses])
    assert mx.allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_logprobs_are_none_unless_asked_for():
    for options in ({}, {"temp": 0.8, "seed": 1}, {"sampler": lambda x: mx.argmax(x, axis=-1)}):
        responses, _ = run(6, [2, 0], **options)
        assert all(r.logprobs is None for r in responses)


class Spy:
    """Notes, in order, when rounds are submitted and read, and every blocking read of an array."""

    def __init__(self, monkeypatch):
        self.events = []
        submit, read = RoundQueue.submit, RoundQueue.read
        rounds = {"submit": 0, "read": 0}

        def noted(name, method):
            def call(*args):
                self.events.append((name, rounds[name]))
                rounds[name] += 1
                return method(*args)

            return call

        monkeypatch.setattr(RoundQueue, "submit", noted("submit", submit))
        monkeypatch.setattr(RoundQueue, "read", noted("read", read))
        for name in ("tolist", "item", "__array__", "__bool__", "__int__", "__float__"):
            monkeypatch.setattr(mx.array, name, self._blocking(getattr(mx.array, name)))
        for name in ("eval", "synchronize"):
            monkeypatch.setattr(mx, name, self._blocking(getattr(mx, name)))

    def _blocking(self, method):
        def call(*args, **kwargs):
            self.events.append(("wait", method.__name__))
            return method(*args, **kwargs)

        return call

    def decoding(self):
        """The events from the first round on."""
        return self.events[self.events.index(("submit", 0)) :]


MODES = {
    "greedy": {},
    "plain": {"draft": False},
    "auto": {"block_size": "auto"},
    "coupled": {"temp": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "seed": 3},
    "rejection": {"temp": 0.8, "seed": 3, "acceptance": "rejection"},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.1, "logit_bias": {3: 1.0}},
    "logprobs": {"logprobs": True},
    "sampler": {"sampler": lambda logprobs: mx.random.categorical(logprobs)},
}


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_one_read_a_round_and_the_next_round_is_queued_before_it(options, monkeypatch):
    prompt, _ = case()
    with random_pair(model()) as pair:
        tune(pair)
        spy = Spy(monkeypatch)
        respond(pair, TOKENIZER, prompt, 20, **options)
        monkeypatch.undo()
    events = spy.decoding()
    reads = [i for i, (name, _) in enumerate(events) if name == "read"]
    waits = [i for i, (name, _) in enumerate(events) if name == "wait"]
    assert len(reads) > 2
    # The only waits are the reads' own.
    assert waits == [i + 1 for i in reads]
    assert {events[i] for i in waits} == {("wait", "tolist")}
    submitted = max(number for name, number in events if name == "submit")
    for i in reads:
        following = min(events[i][1] + 1, submitted)
        assert ("submit", following) in events[:i]
        # One round ahead, and no more.
        assert ("submit", following + 1) not in events[:i]


WINDOWED = {"layer_types": ("sliding_attention",) * 2, "sliding_window": 8}


@pytest.mark.parametrize("changes", [{}, WINDOWED], ids=["full", "windowed"])
def test_a_rounds_rows_do_not_grow_with_the_context(changes):
    for length in (9, 300):
        rows = {"verified": [], "projected": [], "drafted": []}
        with random_pair(model(), **changes) as pair:
            for name, owner, method in (
                ("verified", pair.target, "forward"),
                ("projected", pair.drafter, "write_context"),
                ("drafted", pair.drafter, "_head"),
            ):
                call = getattr(owner, method)
                setattr(owner, method, functools.partial(_counted, rows[name], call))
            respond(pair, TOKENIZER, case(length)[0], 20)
        rounds = len(rows["drafted"])
        assert rows["drafted"] == [7] * rounds
        # The prompt is prefilled and projected once, and never again.
        assert rows["verified"] == rows["projected"] == [length - 1] + [8] * rounds


def _counted(rows, call, x, *rest):
    rows.append(x.shape[1])
    return call(x, *rest)


def test_users_processors_wait_for_each_round(monkeypatch):
    prompt, truth = case()
    with random_pair(model()) as pair:
        spy = Spy(monkeypatch)
        responses = respond(pair, TOKENIZER, prompt, 10, logits_processors=[lambda _, x: x])
        monkeypatch.undo()
    assert tokens_of(responses) == truth[:10]
    order = [(name, k) for name, k in spy.decoding() if name in ("submit", "read")]
    assert order == sorted(order, key=lambda e: (e[1], e[0] == "read"))


def test_a_first_token_costs_no_more_than_plain_prefill(monkeypatch):
    prompt, _ = case(37)
    shapes = []
    with random_pair(model()) as pair:
        forward = pair.target.forward
        pair.target.forward = lambda ids, caches: shapes.append(ids.shape) or forward(ids, caches)
        respond(pair, TOKENIZER, prompt, 1, prefill_step_size=16)
    assert shapes == [(1, 16), (1, 16), (1, 4), (1, 8)]
    assert plain_greedy(model(), prompt, 1) == case(37)[1][:1]
