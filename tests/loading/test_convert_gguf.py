"""The GGUF conversion, on a tiny Llama model that is written as llama.cpp would write it."""

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.llama import Model, ModelArgs

from dflash_mlx.loading.embedded.gguf import (
    _LAYER_NAMES,
    _TOP_NAMES,
    model_weights,
    quantization_config,
    unpermute_rows,
    write_model_folder,
)

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 2, 1, 32, 2
BYTES = [chr(b) for b in [*range(33, 127), *range(161, 173), *range(174, 256)]]
BYTES += [chr(256 + i) for i in range(256 - len(BYTES))]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTES, "ab", "12", "Ġx"]


def llama_cpp_order(heads: int, head_dim: int) -> list[int]:
    """For each row that llama.cpp writes, the checkpoint's row: pairs (i, i + head_dim/2)."""
    half = head_dim // 2
    return [
        h * head_dim + i + part * half for h in range(heads) for i in range(half) for part in (0, 1)
    ]


def tiny_metadata() -> dict:
    integers = {
        "llama.embedding_length": HEADS * HEAD_DIM,
        "llama.feed_forward_length": 96,
        "llama.block_count": LAYERS,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.context_length": 128,
        "llama.vocab_size": len(TOKENS),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return {key: mx.array(value, mx.uint32) for key, value in integers.items()} | {
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5),
        "llama.rope.freq_base": mx.array(100000.0),
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": ["a b", "1 2", "Ġ x"],
        "tokenizer.ggml.token_type": mx.array([3] * 3 + [1] * (len(TOKENS) - 3)),
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }


def tiny_model() -> Model:
    mx.random.seed(0)
    args = ModelArgs(
        model_type="llama",
        hidden_size=HEADS * HEAD_DIM,
        num_hidden_layers=LAYERS,
        intermediate_size=96,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        rms_norm_eps=1e-5,
        vocab_size=len(TOKENS),
        rope_theta=100000.0,
    )
    model = Model(args)
    model.set_dtype(mx.float16)
    embedding = {"group_size": 32, "bits": 8}
    nn.quantize(
        model,
        group_size=32,
        bits=4,
        class_predicate=lambda path, module: (
            hasattr(module, "to_quantized")
            and (embedding if path == "model.embed_tokens" else True)
        ),
    )
    return model


def as_gguf(model: Model) -> dict[str, mx.array]:
    """The model's tensors under GGUF's names, q and k permuted, norms in float32."""
    arrays = {}
    for path, array in tree_flatten(model.parameters()):
        module, _, kind = path.rpartition(".")
        if module.endswith("q_proj"):
            array = array[mx.array(llama_cpp_order(HEADS, HEAD_DIM))]
        if module.endswith("k_proj"):
            array = array[mx.array(llama_cpp_order(KV_HEADS, HEAD_DIM))]
        if module.endswith("norm"):
            array = array.astype(mx.float32)
        arrays[f"{gguf_name(module)}.{kind}"] = array
    return arrays


def gguf_name(module: str) -> str:
    top = {name: gguf for gguf, name in _TOP_NAMES.items()}
    if module in top:
        return top[module]
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{ {name: gguf for gguf, name in _LAYER_NAMES.items()}[part] }"


@pytest.mark.parametrize("heads, head_dim", [(1, 4), (3, 2), (2, 8), (9, 64)])
def test_rows_come_back_in_order(heads, head_dim):
    rows = mx.arange(heads * head_dim * 3).reshape(-1, 3)
    permuted = rows[mx.array(llama_cpp_order(heads, head_dim))]
    assert mx.array_equal(unpermute_rows(permuted, heads), rows)


def test_every_tensor_of_a_model_survives(tmp_path):
    model = tiny_model()
    write_model_folder(as_gguf(model), tiny_metadata(), tmp_path)
    loaded, tokenizer = mlx_lm.load(str(tmp_path))

    expected = dict(tree_flatten(model.parameters()))
    found = dict(tree_flatten(loaded.parameters()))
    assert expected.keys() == found.keys()
    for path, array in expected.items():
        assert found[path].dtype == array.dtype, path
        assert mx.array_equal(found[path], array), path
    ids = mx.array([[1, 50, 60, 2]])
    assert mx.array_equal(loaded(ids), model(ids))
    assert tokenizer.eos_token_ids == {2}


def test_quantization_names_the_layers_that_differ():
    def layer(name, words):
        return {
            f"{name}.weight": mx.zeros((4, 2 * words), mx.uint32),
            f"{name}.scales": mx.zeros((4, 2)),
            f"{name}.biases": mx.zeros((4, 2)),
        }

    weights = layer("a", 4) | layer("b", 4) | layer("head", 8) | {"norm.weight": mx.zeros(4)}
    four, eight = ({"group_size": 32, "bits": bits, "mode": "affine"} for bits in (4, 8))
    assert quantization_config(weights) == four | {"head": eight}


def test_a_tensor_of_another_architecture_is_not_dropped():
    with pytest.raises(KeyError, match="attn_q_norm"):
        model_weights({"blk.0.attn_q_norm.weight": mx.zeros(4)}, HEADS, KV_HEADS)


def test_a_full_disk_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match=r"model\.safetensors"):
        write_model_folder(as_gguf(tiny_model()), tiny_metadata(), tmp_path / "missing")


def test_the_tiny_tokenizer(tmp_path):
    write_model_folder(as_gguf(tiny_model()), tiny_metadata(), tmp_path)
    tokenizer = mlx_lm.utils.load_tokenizer(tmp_path)

    def tokens(text):
        return tokenizer.convert_ids_to_tokens(tokenizer.encode(text))

    assert tokens("ab x") == ["ab", "Ġx"]
    # Digits are split before the merges are applied, so "12" is never one token.
    assert tokens("12") == ["1", "2"]
    assert tokens("<|im_end|>ab") == ["<|im_end|>", "ab"]
    assert tokenizer.decode(tokenizer.encode("日本 é🤖")) == "日本 é🤖"
    assert tokenizer.has_chat_template
