"""Prompt caches of targets with sliding windows, handed back and continued."""

import functools

import pytest
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache
from support.caches import MAKERS, assert_continues
from support.pairs import oracle_pair, respond, tokens_of
from support.plain import clear_case
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx.engine.sampling import Sampling

B = 4
TOKENIZER = byte_tokenizer()
FAMILIES = ("gemma3_text", "gpt_oss")
model_of = functools.cache(tiny_model)
every_family = pytest.mark.parametrize("family", FAMILIES)


@functools.cache
def case(family, length=5):
    return clear_case(model_of(family), length, 60, Sampling())


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@every_family
def test_ends_anywhere(family, make):
    prompt, truth = case(family)
    for n in range(1, 6 * B, 3):
        with oracle_pair(model_of(family), prompt + truth, block_size=B) as pair:
            cache = make(pair)
            assert tokens_of(respond(pair, TOKENIZER, prompt, n, prompt_cache=cache)) == truth[:n]
            assert_continues(pair, cache, prompt + truth[:n], truth[n : n + 20])


@every_family
def test_file_of_mlx_lm(family, tmp_path):
    prompt, truth = case(family, 30)
    with oracle_pair(model_of(family), prompt + truth, block_size=B) as pair:
        cache = pair.make_prompt_cache()
        respond(pair, TOKENIZER, prompt, 10, prompt_cache=cache)
        save_prompt_cache(str(tmp_path / "cache.safetensors"), cache)
        loaded = load_prompt_cache(str(tmp_path / "cache.safetensors"))
        assert_continues(pair, loaded, prompt + truth[:10], truth[10:40])
