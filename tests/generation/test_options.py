"""Options: what is unknown or absurd is refused by name, before anything runs."""

import functools
import inspect
from dataclasses import fields

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_sampler
from support.pairs import random_pair, respond, tokens_of
from support.plain import plain_greedy, random_prompt
from support.tiny import VOCAB, tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import Pair, UserError, generate, stream_generate
from dflash_mlx.generation.options import Options
from dflash_mlx.target.target import Target

TOKENIZER = byte_tokenizer()
PROMPT = random_prompt(9, VOCAB)
model = functools.cache(tiny_model)


@pytest.fixture
def pair():
    with random_pair(model()) as made:
        yield made


def test_the_signature_has_the_fields_of_the_table():
    parameters = inspect.signature(stream_generate).parameters.values()
    signature = {p.name: p.default for p in parameters if p.default is not p.empty}
    assert signature == {f.name: f.default for f in fields(Options)}
    # Nothing else is taken in silence.
    assert [p.name for p in parameters if p.kind is p.VAR_KEYWORD] == ["unknown"]


UNKNOWN = {
    "temperature": "`temperature`; did you mean temp?",
    "max_token": "`max_token`; did you mean max_tokens?",
    "bogus": "`bogus`.",
}


@pytest.mark.parametrize("function", [stream_generate, generate])
@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_option_is_named_with_the_nearest_known_one(function, name, pair):
    # At once, not when the first token is asked for.
    with pytest.raises(UserError) as refused:
        function(pair, TOKENIZER, PROMPT, **{name: 1})
    assert str(refused.value).endswith(UNKNOWN[name])


def test_all_unknown_options_are_named(pair):
    with pytest.raises(UserError, match=r"`n`.*`best_of`"):
        stream_generate(pair, TOKENIZER, PROMPT, n=2, best_of=3)


NAN, INF = float("nan"), float("inf")
ABSURD = {
    "max_tokens": [-2, 1.5, "3", None, NAN],
    "block_size": [0, -1, 9, 100, 2.0, "4", True],
    "draft": ["no", 0, None],
    "temp": [-0.1, NAN, INF, "warm", None, True],
    "min_tokens_to_keep": [0, 1.5, 2, True],
    "xtc_probability": [-0.1, 1.5, NAN],
    "xtc_threshold": [-0.1, 0.6, 0.2],
    "xtc_special_tokens": [3, ["a"], [-1]],
    "top_p": [-0.1, 1.5, NAN, "0.5"],
    "min_p": [-0.1, 1.5, NAN],
    "top_k": [-1, 1.5, NAN],
    "seed": [-1, 1.5, 2**64, "one"],
    "acceptance": ["greedy", "", None, 3],
    "repetition_penalty": [-1.0, NAN, INF, "1.1"],
    "presence_penalty": [NAN, INF, "1"],
    "frequency_penalty": [NAN, -INF, "1"],
    "repetition_context_size": [0, -1, 2.5],
    "presence_context_size": [0, -1],
    "frequency_context_size": [0, -1],
    "logit_bias": [{VOCAB: 1.0}, {-1: 1.0}, {1: NAN}, {"one": 1.0}, {1: "much"}, [3], 4],
    "stop": ["", ["a", ""], [1], 7, None],
    "prefill_step_size": [0, -1, 2.5],
    "max_kv_size": [0, -4, 8, 2.5],
    "kv_bits": [0, -4, 7, 2.5, "4"],
    "kv_group_size": [0, 32, "64"],
    "quantized_kv_start": [-1, 0, 2.5],
    "sampler": [3],
    "logits_processors": [3, [3]],
    "prompt_progress_callback": [3],
    "prompt_cache": [[None, None, None]],
}


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in ABSURD.items() for v in values], ids=str
)
def test_absurd_value_is_refused(pair, name, value):
    sampled = {"temp": 0.8} if name in ("top_p", "min_p", "top_k", "seed", "acceptance") else {}
    with pytest.raises(UserError, match=name.replace("_", "[_ ]")):
        stream_generate(pair, TOKENIZER, PROMPT, **({"max_tokens": 4} | sampled | {name: value}))


@pytest.mark.parametrize(
    "option",
    [{"temp": 0.5}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.1}, {"xtc_probability": 0.1}],
)
def test_sampler_excludes_the_sampling_keywords(pair, option):
    with pytest.raises(UserError, match="either a `sampler` or"):
        stream_generate(pair, TOKENIZER, PROMPT, sampler=make_sampler(temp=0.5), **option)


def test_sampler_excludes_a_seed(pair):
    with pytest.raises(UserError, match=r"mx\.random\.seed"):
        stream_generate(pair, TOKENIZER, PROMPT, sampler=make_sampler(temp=0.5), seed=1)


def test_sampler_excludes_rejection(pair):
    with pytest.raises(UserError, match="rejection"):
        stream_generate(
            pair, TOKENIZER, PROMPT, sampler=make_sampler(temp=0.5), acceptance="rejection"
        )


BAD_PROMPTS = {
    "empty text": ("", "empty"),
    "no ids": ([], "empty"),
    "an empty array": (mx.array([], mx.int32), "empty"),
    "two dimensions": (mx.array([[1, 2]]), "dimension"),
    "a number": (mx.array(3), "dimension"),
    "a batch": ([[1, 2], [3, 4]], "prompt"),
    "text in a list": (["a", "b"], "prompt"),
    "fractions": (mx.array([1.5, 2.0]), "prompt"),
    "a negative id": ([1, -1], "-1"),
    "an id beyond the table": ([1, VOCAB], str(VOCAB)),
    "nothing": (None, "prompt"),
}


@pytest.mark.parametrize(("prompt", "message"), BAD_PROMPTS.values(), ids=BAD_PROMPTS)
def test_bad_prompt_is_refused(pair, prompt, message):
    with pytest.raises(UserError, match=message):
        stream_generate(pair, TOKENIZER, prompt)


@pytest.mark.parametrize("kind", [list, tuple, mx.array, np.array], ids=lambda k: k.__name__)
def test_kinds_of_prompts(pair, kind):
    truth = plain_greedy(model(), PROMPT, 5)
    assert tokens_of(respond(pair, TOKENIZER, kind(PROMPT), 5)) == truth


def test_text_prompt_is_tokenized_as_mlx_lm_does(pair):
    text = "ABC 123"
    truth = plain_greedy(model(), [*text.encode()], 5)
    assert tokens_of(respond(pair, TOKENIZER, text, 5)) == truth


def test_block_size_needs_a_drafter(pair):
    with pytest.raises(UserError, match="switched off"):
        stream_generate(pair, TOKENIZER, PROMPT, draft=False, block_size=4)
    with pytest.raises(UserError, match="no drafter"):
        stream_generate(Pair(Target(model())), TOKENIZER, PROMPT, block_size=4)


def test_block_size_beyond_the_trained_one_names_both(pair):
    with pytest.raises(UserError, match=r"between 1 and 8.*not 9"):
        stream_generate(pair, TOKENIZER, PROMPT, block_size=9)


def test_target_alone_decodes_plainly():
    pair = Pair(Target(model()))
    truth = plain_greedy(model(), PROMPT, 5)
    for options in ({}, {"draft": False}):
        responses = respond(pair, TOKENIZER, PROMPT, 5, **options)
        assert tokens_of(responses) == truth
        assert {r.block_size for r in responses} == {1}


def test_refusal_changes_nothing(pair):
    cache = make_prompt_cache(model())
    for option in ({"top_p": 2.0}, {"max_tokens": -5}, {"nonsense": 1}, {"stop": ""}):
        with pytest.raises(UserError):
            stream_generate(pair, TOKENIZER, PROMPT, prompt_cache=cache, **option)
    assert all(c.empty() for c in cache)
    assert tokens_of(respond(pair, TOKENIZER, PROMPT, 5)) == plain_greedy(model(), PROMPT, 5)


def test_neutral_values_change_nothing(pair):
    truth = plain_greedy(model(), PROMPT, 9)
    neutral = {
        "temp": 0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "min_tokens_to_keep": 1,
        "xtc_probability": 0.0,
        "xtc_special_tokens": [],
        "repetition_penalty": 1.0,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "logits_processors": [],
        "stop": [],
        "sampler": None,
        "prompt_cache": None,
        "prompt_progress_callback": None,
        "max_kv_size": None,
        "seed": None,
        "block_size": None,
    }
    for name, value in neutral.items():
        assert tokens_of(respond(pair, TOKENIZER, PROMPT, 9, **{name: value})) == truth, name
    assert tokens_of(respond(pair, TOKENIZER, PROMPT, 9, **neutral)) == truth
