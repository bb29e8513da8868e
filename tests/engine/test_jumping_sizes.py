"""The text does not depend on the block sizes, even if they change with every round."""

import functools

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from support.batch import start
from support.chance import LIMIT, MarkovTarget, RandomDrafter, count, exact, misfit, trials
from support.jumping import emitted, jumps
from support.oracle import OracleDrafter
from support.pairs import oracle_pair, random_pair
from support.plain import clear_case
from support.tiny import VOCAB, tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx.engine.choose import Chooser
from dflash_mlx.engine.queue import RoundQueue
from dflash_mlx.engine.round import LARGEST_PENDING, run_round, write_pending
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.engine.state import State
from dflash_mlx.target.target import Target

N = 200
TOKENIZER = byte_tokenizer()
GREEDY = Sampling()
COUPLED = Sampling(temp=0.9, top_p=0.95, seed=11)
FAMILIES = {
    "llama": {},
    "qwen3_moe": {},
    "gemma3_text": {},
    "gpt_oss": {},
    "qwen3_next": {},
    "deepseek_v3": {},
    "glm_moe_dsa": {},
    "sliding llama": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 8,
    },
}


@functools.cache
def model_of(family):
    return tiny_model(family.split()[-1], **FAMILIES[family])


@functools.cache
def case(family, length, sampling=GREEDY):
    return clear_case(model_of(family), length, N + 40, sampling)


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_text_is_that_of_plain_decoding(family, sampling, seed):
    prompt, truth = case(family, 20, sampling)
    options = {} if sampling.greedy else {"temp": 0.9, "top_p": 0.95, "seed": 11}
    with oracle_pair(model_of(family), prompt + truth, (15, 0, 4, 1, 9), 16) as pair:
        sizes = jumps(N, seed)
        tokens, rounds = emitted(pair, TOKENIZER, prompt, N, sizes, **options)
    assert tokens == truth[:N]
    assert [size for size, _ in rounds] == sizes[: len(rounds)]
    assert len({size for size, _ in rounds}) > 5


@pytest.mark.parametrize("taps", [(0, 2)])
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_context_holds_exactly_the_committed_features(family, taps):
    model, n = model_of(family), 150
    prompt, truth = case(family, 10)
    target = Target(model, taps)
    try:
        drafter = OracleDrafter([prompt + truth], lambda r: r * 5 % 16, VOCAB)
        state, lengths = start(target, drafter, [prompt])
        queue = RoundQueue(target, drafter, Chooser(GREEDY), state, lengths)
        tokens, sizes = [], iter(jumps(200, 4))
        queue.submit(next(sizes))
        while len(tokens) < n:
            queue.submit(next(sizes))
            tokens += queue.read().tokens[0]
            assert len(state.pending) < LARGEST_PENDING
        assert tokens[:n] == truth[:n]
        tokens += queue.read().tokens[0]
        write_pending(drafter, state)
        committed = queue.lengths[0]
        whole = mx.array([(prompt + tokens)[:committed]])
        _, features = target.forward(whole, target.make_cache())
        written = state.context[0].keys[0, 0, :committed]
        assert mx.allclose(written, features[0], rtol=1e-4, atol=1e-4)
    finally:
        target.release()


def first_draft(pair, prompt, truth, plain_rounds):
    """Logits and context of the first draft after some plain rounds."""
    seen, draft = [], pair.drafter.draft

    def spy(anchor, block_size, context):
        offset = context[0].offset.item()
        rows = [a[:, :, :offset] for c in context for a in (c.keys, c.values)]
        proposal = draft(anchor, block_size, context)
        seen.append([proposal.logits, *rows])
        return proposal

    pair.drafter.draft = spy
    try:
        n = plain_rounds + 8
        tokens, _ = emitted(pair, TOKENIZER, prompt, n, [1] * plain_rounds + [8])
    finally:
        pair.drafter.draft = draft
    assert tokens == truth[:n]
    return seen[0]


@pytest.mark.parametrize(
    ("plain_rounds", "length", "window"),
    [
        *((n, length, None) for n in (1, 2, 31, 32, 33, 64, 70) for length in (2, 20)),
        *((n, 20, window) for n in (1, 31, 32, 33, 70) for window in (3, 8, 40)),
    ],
)
def test_draft_after_plain_rounds_is_that_of_a_cold_start(plain_rounds, length, window):
    prompt, truth = case("llama", length)
    sliding = {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": window}
    with random_pair(model_of("llama"), **(sliding if window else {})) as pair:
        warm = first_draft(pair, prompt, truth, plain_rounds)
        rest = truth[plain_rounds:]
        cold = first_draft(pair, prompt + truth[:plain_rounds], rest, 0)
    for a, b in zip(warm, cold, strict=True):
        assert a.shape == b.shape
        assert mx.abs(a - b).max() <= 2e-5 * mx.abs(b).max()


@pytest.mark.parametrize("plain_rounds", [1, 7, 40])
def test_prompt_cache_after_plain_rounds_keeps_the_whole_context(plain_rounds):
    prompt, truth = case("llama", 20)
    with random_pair(model_of("llama")) as pair:
        cache = pair.make_prompt_cache()
        emitted(pair, TOKENIZER, prompt, plain_rounds, [1], prompt_cache=cache)
        context = cache.take_context(len(prompt) + plain_rounds, pair.drafter)
        _, features = pair.target.forward(
            mx.array([prompt + truth[:plain_rounds]]), pair.target.make_cache()
        )
        cold = pair.drafter.make_context(mx.array([0], mx.int32))
        for c in cold:
            c.reserve(features.shape[1])
        pair.drafter.write_context(features, cold)
        for a, b in zip(context, cold, strict=True):
            for warm, fresh in ((a.keys, b.keys), (a.values, b.values)):
                n = features.shape[1]
                assert mx.allclose(warm[:, :, :n], fresh[:, :, :n], rtol=1e-4, atol=1e-4)


def test_users_processors_see_every_token_once_more_whatever_the_sizes():
    prompt, truth = case("llama", 20)

    def processor(tokens, logits):
        assert tokens[: len(prompt)].tolist() == prompt
        return logits

    with oracle_pair(model_of("llama"), prompt + truth, (15, 0, 4), 16) as pair:
        options = {"logits_processors": [processor]}
        tokens, _ = emitted(pair, TOKENIZER, prompt, 60, jumps(60, 1), **options)
    assert tokens == truth[:60]


def test_penalties_follow_the_text_whatever_the_sizes():
    prompt, truth = case("llama", 20)
    options = {"repetition_penalty": 1.3, "frequency_penalty": 0.2}
    with oracle_pair(model_of("llama"), prompt + truth, (15, 0, 4), 16) as pair:
        plain, _ = emitted(pair, TOKENIZER, prompt, 100, [1], **options)
        tokens, _ = emitted(pair, TOKENIZER, prompt, 100, jumps(100, 2), **options)
    unpenalized = [
        int(t) for t, _ in generate_step(mx.array(prompt), model_of("llama"), max_tokens=100)
    ]
    assert tokens == plain != unpenalized


def test_rejection_is_exact_though_sizes_follow_what_was_accepted():
    """The size of a second round hangs on the first one's acceptance; its tokens must not."""
    vocab, rows, sizes = 8, 20_000, (1, 4, 2, 3)
    target = MarkovTarget(mx.random.normal((vocab, vocab), key=mx.random.key(1)) * 1.5)
    drafter = RandomDrafter(target.logits[:, None] + RandomDrafter.of(vocab, 4, 0.7).logits)
    sampling = Sampling(temp=1.0, acceptance="rejection", seed=5)
    state, chooser = trials(rows), Chooser(sampling, batch=rows)
    accepted = np.array(run_round(target, drafter, chooser, state, 4).accepted)
    seeds, counts = chooser._seeds, np.zeros((vocab, vocab), np.int64)
    for before, size in enumerate(sizes):
        group = mx.array(np.flatnonzero(accepted == before))
        assert group.size > 300
        chooser._seeds = seeds[group]
        anchor = state.anchor[group]
        verdict = run_round(target, drafter, chooser, State(anchor, state.offset[group], []), size)
        tokens, kept = np.array(verdict.tokens), np.array(verdict.accepted)
        given = np.concatenate([np.array(anchor)[:, None], tokens[:, :-1]], axis=1)
        emitted = np.arange(size) <= kept[:, None]
        counts += count(given[emitted], tokens[emitted], vocab)
    assert misfit(counts, exact(np.array(target.logits), sampling)) < LIMIT
