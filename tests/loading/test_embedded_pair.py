"""The real target: what was converted writes Python, and its tokenizer is the model's."""

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.utils import dequantize_model, load_tokenizer

from dflash_mlx import load

pytestmark = pytest.mark.pair

TEXTS = [
    "def f(x):\n\treturn x**2  # 12345\n",
    "a\r\nb   \n\n  \n c ",
    "3.14159 2024-01-01 ½ ٣٤",
    "naïve café 日本語 🤖👩‍👩‍👧 e\u0301\u200b",
    "don't we'll I'M",
    "<|im_start|>user\nhi<|im_end|>\n<repo_name>x",
]


@pytest.fixture(scope="module")
def tokenizer(target_folder):
    return load_tokenizer(target_folder)


@pytest.mark.parametrize("text", TEXTS)
def test_text_round_trips(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    detokenizer = tokenizer.detokenizer
    pieces = []
    for token in ids:
        detokenizer.add_token(token)
        pieces.append(detokenizer.last_segment)
    detokenizer.finalize()
    assert "".join([*pieces, detokenizer.last_segment]) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_special_tokens(tokenizer):
    assert len(tokenizer) == 49152
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.encode("<|im_start|><|im_end|>") == [1, 2]
    assert tokenizer.encode("123") == [33, 34, 35]
    assert tokenizer.all_special_ids[:3] == [1, 2, 0]


def test_the_target_writes_a_python_function(target_folder):
    model, tokenizer = mlx_lm.load(str(target_folder))
    assert model.model.embed_tokens.bits == 8
    assert model.model.layers[0].self_attn.q_proj.bits == 4
    # float32 is the only fast type on the CPU.
    model = dequantize_model(model)
    model.set_dtype(mx.float32)
    question = "Write a Python function that returns the n-th Fibonacci number."
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True
    )
    answer = mlx_lm.generate(model, tokenizer, prompt, max_tokens=24)
    assert answer.startswith("```python\ndef fibonacci(n):\n")


def test_the_cached_folder_is_the_default_pair(target_folder):
    pair, _ = load(target_folder)
    assert pair.drafter is not None
    assert load(target_folder, draft_model=False)[0].drafter is None
    if mx.default_device() == mx.cpu:
        assert pair.target.dtype == mx.float32
