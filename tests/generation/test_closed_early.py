"""Prompt caches of a generation that its caller ends after any token."""

import pytest
from support.caches import assert_holds
from support.outside import OUTSIDE
from support.pairs import oracle_pair
from support.plain import clear_case
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx import stream_generate
from dflash_mlx.engine.sampling import Sampling

B = 4
# Recurrent states, layers without caches of their own, and windows.
FAMILIES = (
    *("qwen3_next", "qwen3_5", "gemma4", "falcon_h1", "lfm2", "nemotron_h"),
    *("gemma3_text", "gpt_oss"),
)


@pytest.mark.parametrize("family", FAMILIES)
def test_closed_early(family):
    model = tiny_model(family, **OUTSIDE.get(family, {}))
    prompt, truth = clear_case(model, 5, 60, Sampling())
    for k in range(1, 2 * B + 2):
        with oracle_pair(model, prompt + truth, block_size=B) as pair:
            cache = pair.make_prompt_cache()
            responses = stream_generate(pair, byte_tokenizer(), prompt, 50, prompt_cache=cache)
            assert [next(responses).token for _ in range(k)] == truth[:k]
            responses.close()
            assert_holds(pair.model, cache, prompt + truth[:k])
