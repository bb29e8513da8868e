"""Logits processors that keep a state, as those of grammar libraries do, under drafting."""

import functools
import json

import llguidance
import llguidance.hf
import llguidance.numpy
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import make_sampler
from support.folders import VOCAB
from support.pairs import oracle_pair, random_pair, respond, text_of, tokens_of
from support.plain import plain_greedy, random_prompt
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

TOKENIZER = byte_tokenizer()
N = 24
model = functools.cache(lambda: tiny_model("llama", vocab_size=VOCAB))
PROMPT = random_prompt(7, 97, 3)
HOW = {
    "greedy": {},
    "coupled": {"temp": 1.3, "seed": 5},
    "rejection": {"temp": 1.3, "seed": 5, "acceptance": "rejection"},
    "sampler": {"sampler": make_sampler(temp=1.3)},
}


class Automaton:
    """Allows what follows the last token in a cycle of sets, and insists on being called in order.

    Each call must bring exactly one token more than the one before; the first sees the prompt.
    """

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.state = 0

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        tokens = tokens.tolist()
        assert logits.shape[0] == 1
        if self.seen:
            assert tokens[:-1] == self.seen, "a position was skipped, repeated or taken back"
            # What was allowed depends on all that was emitted.
            self.state = (self.state + tokens[-1]) % 5
        self.seen = tokens
        mask = mx.full(logits.shape, -mx.inf)
        mask[:, self.state :: 5] = 0
        return logits + mask


def text(pair, **options):
    """A text under a new automaton; a user's sampler draws from mx.random, seeded here."""
    mx.random.seed(11)
    options = {"logits_processors": [Automaton()], **options}
    return tokens_of(respond(pair, TOKENIZER, PROMPT, N, **options))


def obeys(tokens: list[int]) -> bool:
    """Whether every token was allowed where it stands."""
    state = 0
    for token in tokens:
        if token % 5 != state:
            return False
        state = (state + token) % 5
    return True


@functools.cache
def plainly(how: str) -> tuple[int, ...]:
    with random_pair(model(), vocab_size=VOCAB) as pair:
        return tuple(text(pair, draft=False, **HOW[how]))


@pytest.mark.parametrize("counts", [(0,), (1, 0, 2), (7,), (3, 7, 0, 5)])
@pytest.mark.parametrize("how", ["greedy", "coupled", "sampler"])
def test_the_text_is_that_of_plain_decoding(how, counts):
    truth = list(plainly(how))
    assert obeys(truth)
    with oracle_pair(model(), PROMPT + truth, counts, block_size=8) as pair:
        for block_size in (2, 3, 8):
            assert text(pair, block_size=block_size, **HOW[how]) == truth


def test_plain_text_is_mlx_lms():
    expected = plain_greedy(model(), PROMPT, N, logits_processors=[Automaton()])
    assert list(plainly("greedy")) == expected


def test_right_drafts_are_accepted():
    truth = list(plainly("greedy"))
    with oracle_pair(model(), PROMPT + truth, (7,), block_size=8) as pair:
        responses = respond(pair, TOKENIZER, PROMPT, N, logits_processors=[Automaton()])
    assert tokens_of(responses) == truth and responses[-1].tau == 8


@pytest.mark.parametrize("block_size", [1, 2, 8])
def test_rejection_keeps_to_the_automaton(block_size):
    with random_pair(model(), vocab_size=VOCAB) as pair:
        options = HOW["rejection"] | {"seed": block_size, "block_size": block_size}
        assert obeys(text(pair, **options))


def test_log_probabilities_are_of_what_was_processed():
    with random_pair(model(), vocab_size=VOCAB) as pair:
        options = {"logits_processors": [Automaton()], "logprobs": True}
        drafted = respond(pair, TOKENIZER, PROMPT, N, block_size=8, **options)
        options["logits_processors"] = [Automaton()]
        plain = respond(pair, TOKENIZER, PROMPT, N, draft=False, **options)
    for one, other in zip(drafted, plain, strict=True):
        assert one.token == other.token and one.logprobs.shape == (VOCAB,)
        assert mx.allclose(one.logprobs, other.logprobs, atol=1e-4)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class Grammar:
    """A published grammar engine as a logits processor: one token consumed a call."""

    def __init__(self) -> None:
        tokenizer = llguidance.hf.from_tokenizer(TOKENIZER._tokenizer, n_vocab=VOCAB)
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA))
        self._matcher = llguidance.LLMatcher(tokenizer, grammar)
        self._mask = llguidance.numpy.allocate_token_bitmask(1, VOCAB)
        self._seen: int | None = None

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        if self._seen is not None:
            assert tokens.size == self._seen + 1
            assert self._matcher.consume_token(tokens[-1].item()), self._matcher.get_error()
        self._seen = tokens.size
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._mask)
        allowed = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[:VOCAB]
        return mx.where(mx.array(allowed.astype(bool)), logits, -mx.inf)


@pytest.mark.parametrize("how", ["greedy", "coupled", "rejection"])
def test_json_of_a_schema(how):
    answers = []
    with random_pair(model(), vocab_size=VOCAB) as pair:
        for way in ({"draft": False}, {"block_size": 8}):
            options = {"logits_processors": [Grammar()], **way, **HOW[how]}
            answers.append(text_of(respond(pair, TOKENIZER, PROMPT, 80, **options)))
    assert all(set(json.loads(answer)) == {"name", "age"} for answer in answers)
    if how != "rejection":
        assert answers[0] == answers[1]
