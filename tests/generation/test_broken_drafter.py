"""A drafter whose logits are NaN costs speed alone, and is said so once."""

import warnings

import mlx.core as mx
import pytest
from support.pairs import respond, tiny_drafter, tokens_of
from support.plain import random_prompt
from support.tiny import VOCAB, tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx.loading.loader import make_pair

WAYS = {
    "greedy": {},
    "coupled": {"temp": 0.8, "seed": 3},
    "processed": {"logits_processors": [lambda tokens, logits: logits]},
    "logprobs": {"logprobs": True},
}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_nan_is_said_once(options):
    drafter, prompt = tiny_drafter(), random_prompt(9, VOCAB)
    with make_pair(tiny_model(), drafter) as pair:
        truth = tokens_of(respond(pair, byte_tokenizer(), prompt, 20, draft=False, **options))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            respond(pair, byte_tokenizer(), prompt, 20, block_size=4, **options)
            # Nobody asked it for drafts.
            respond(pair, byte_tokenizer(), prompt, 1, block_size=1, **options)
        drafter.norm.weight = drafter.norm.weight * mx.nan
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = respond(pair, byte_tokenizer(), prompt, 20, block_size=4, **options)
    assert tokens_of(found) == truth and found[-1].tau == 1
    assert ["NaN" in str(w.message) for w in warned] == [True]
