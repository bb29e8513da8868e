"""From llama.cpp's GGUF file of a Llama model to the folder that mlx-lm loads.

GGUF's Q4_1 and Q8_0 blocks are MLX's affine 4-bit and 8-bit groups of 32, and ``mx.load`` reads
them as such: nothing is requantized. The format is described in ggml's ``docs/gguf.md``.
"""

import json
from collections import Counter
from pathlib import Path

import mlx.core as mx
import numpy as np

from ...errors import os_reason
from .gguf_tokenizer import build_tokenizer

GROUP_SIZE = 32

_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_model_folder(arrays: dict[str, mx.array], metadata: dict, folder: Path) -> None:
    """Write ``config.json``, ``model.safetensors`` and the tokenizer's files into ``folder``.

    Args:
        arrays: The tensors that ``mx.load`` read from a file of the ``llama`` architecture with
            Q4_1, Q8_0 and float32 tensors.
        metadata: The metadata that it read beside them.
        folder: An existing, empty folder.

    Raises:
        KeyError: A tensor has a name that the Llama architecture does not use.
        OSError: The folder cannot be written.
    """
    config = model_config(metadata)
    weights = model_weights(arrays, config["num_attention_heads"], config["num_key_value_heads"])
    config["quantization"] = quantization_config(weights)
    try:
        mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    except RuntimeError as error:
        # The folder's writer expects Python's error.
        raise OSError(os_reason(error)) from error
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    build_tokenizer(metadata, model_max_length=config["max_position_embeddings"]).save_pretrained(
        folder
    )


def model_config(metadata: dict) -> dict:
    """The mlx-lm ``llama`` config for a GGUF's metadata, without its quantization section."""

    def integer(key: str) -> int:
        return metadata[key].item()

    def real(key: str) -> float:
        # The shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06.
        return float(str(np.float32(metadata[key].item())))

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": integer("llama.embedding_length"),
        "intermediate_size": integer("llama.feed_forward_length"),
        "num_hidden_layers": integer("llama.block_count"),
        "num_attention_heads": integer("llama.attention.head_count"),
        "num_key_value_heads": integer("llama.attention.head_count_kv"),
        "head_dim": integer("llama.rope.dimension_count"),
        "max_position_embeddings": integer("llama.context_length"),
        "vocab_size": integer("llama.vocab_size"),
        "rms_norm_eps": real("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": real("llama.rope.freq_base"),
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": integer("tokenizer.ggml.eos_token_id"),
        "pad_token_id": integer("tokenizer.ggml.padding_token_id"),
        "dtype": "float16",
    }


def model_weights(arrays: dict[str, mx.array], heads: int, kv_heads: int) -> dict[str, mx.array]:
    """Rename GGUF's tensors to mlx-lm's, put the rows of q and k in order, norms in float16.

    Args:
        arrays: What ``mx.load`` read: float32 norms ``[hidden]``; for every linear layer a uint32
            ``weight`` ``[rows, words]`` and float16 ``scales`` and ``biases`` ``[rows, groups]``.
        heads: Query heads.
        kv_heads: Key and value heads.

    Raises:
        KeyError: A tensor has a name that the Llama architecture does not use.
    """
    weights = {}
    for name, array in arrays.items():
        renamed = _rename(name)
        if ".q_proj." in renamed:
            array = unpermute_rows(array, heads)
        elif ".k_proj." in renamed:
            array = unpermute_rows(array, kv_heads)
        if array.dtype == mx.float32:
            # A float32 norm beside float16 scales would turn every activation into float32.
            array = array.astype(mx.float16)
        weights[renamed] = array
    return weights


def unpermute_rows(array: mx.array, heads: int) -> mx.array:
    """Undo llama.cpp's interleaving of the two RoPE halves of each head.

    llama.cpp pairs row ``2i`` with ``2i + 1``, checkpoints pair row ``i`` with ``i + head_dim/2``.

    Args:
        array: ``[heads * head_dim, columns]``, any dtype; for a quantized layer, each of its
            weight, scales and biases.
        heads: The number of heads.

    Returns:
        The same rows in the checkpoint's order.
    """
    rows, columns = array.shape
    pairs = array.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def quantization_config(weights: dict[str, mx.array]) -> dict:
    """mlx-lm's ``quantization`` section: the usual width, then the layers that differ from it."""
    bits = {}
    for name, scales in weights.items():
        if name.endswith(".scales"):
            path = name.removesuffix(".scales")
            # A group of 32 values of n bits fills n words of 32 bits.
            bits[path] = weights[f"{path}.weight"].shape[-1] // scales.shape[-1]
    usual = Counter(bits.values()).most_common(1)[0][0]

    def section(width: int) -> dict:
        return {"group_size": GROUP_SIZE, "bits": width, "mode": "affine"}

    others = {path: section(width) for path, width in bits.items() if width != usual}
    return section(usual) | others


def _rename(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if module.startswith("blk."):
        _, layer, part = module.split(".")
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
    return f"{_TOP_NAMES[module]}.{kind}"
