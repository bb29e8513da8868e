"""The model card of a converted drafter."""

from collections.abc import Mapping
from textwrap import dedent
from typing import Any

from ..drafter.config import DrafterConfig


def model_card(config: DrafterConfig, source: dict[str, Any], quantization: dict | None) -> str:
    """README.md of a converted drafter: Hugging Face front matter, facts, and how to use it.

    Args:
        config: The drafter.
        source: The ``source`` object of its config.json.
        quantization: ``bits`` and ``group_size``, or None.
    """
    front = ["---", "library_name: mlx", "pipeline_tag: text-generation"]
    if "repo" in source:
        front.append(f"base_model: {source['repo']}")
    if source["license"]:
        front.append(f"license: {source['license']}")
    front += ["tags:", "- mlx", "- dflash", "- speculative-decoding", "---"]
    origin = source.get("repo") or source["path"]
    revision = f" at revision {source['revision']}" if source["revision"] else ""
    weights = (
        f"{quantization['bits']}-bit, group size {quantization['group_size']}"
        if quantization
        else "not quantized"
    )
    depth = f" of {config.num_target_layers}" if config.num_target_layers else ""
    body = dedent(f"""
        # DFlash drafter in MLX format

        Converted from {origin}{revision} by dflash-mlx. It drafts blocks for the target that it
        was trained with and does not generate text alone.

        | | |
        |---|---|
        | layers | {config.num_hidden_layers} |
        | hidden size | {config.hidden_size} |
        | block size (anchor included) | {config.block_size} |
        | taps (0-based target layers) | {", ".join(map(str, config.target_layer_ids))}{depth} |
        | mask token | {config.mask_token_id} |
        | weights | {weights} |

        ## Use

        ```bash
        dflash-mlx generate --model TARGET --draft-model THIS_FOLDER --prompt "Hello"
        ```

        ```python
        from dflash_mlx import generate, load

        model, tokenizer = load("TARGET", draft_model="THIS_FOLDER")
        print(generate(model, tokenizer, "Hello", max_tokens=100))
        ```
        """)
    return "\n".join(front) + "\n" + body


def exported_card(architecture: str, source: Mapping[str, Any]) -> str:
    """README.md of a drafter in z-lab's format.

    Args:
        architecture: The class of the official package that reads it.
        source: The ``source`` object of the MLX drafter's config.json; may be empty.
    """
    front = ["---", "pipeline_tag: text-generation"]
    if source.get("repo"):
        front.append(f"base_model: {source['repo']}")
    if source.get("license"):
        front.append(f"license: {source['license']}")
    front += ["tags:", "- dflash", "- speculative-decoding", "---"]
    origin = source.get("repo") or source.get("path")
    made_from = f", which was converted from {origin}" if origin else ""
    body = dedent(f"""
        # DFlash drafter for PyTorch

        Exported from an MLX drafter{made_from} by dflash-mlx. It drafts blocks for the target that
        it was trained with and does not generate text alone.

        ```python
        from dflash.model import {architecture}

        drafter = {architecture}.from_pretrained("THIS_FOLDER")
        ```
        """)
    return "\n".join(front) + "\n" + body
