"""The model card of a converted drafter."""

from typing import Any

from ..drafter.config import DrafterConfig
from ..errors import counted

_BODY = """
# DFlash drafter in MLX format

Converted from {origin} by dflash-mlx. It drafts blocks for the target that it was trained with and
does not generate text alone.

| | |
|---|---|
{table}

## Use

```bash
dflash-mlx generate --model TARGET --draft-model THIS_FOLDER --prompt "Hello"
```

```python
from dflash_mlx import generate, load

model, tokenizer = load("TARGET", draft_model="THIS_FOLDER")
print(generate(model, tokenizer, "Hello", max_tokens=100))
```
"""


def weights_row(quantization: dict[str, int] | None) -> str:
    """The row of a card's table that says how the weights are stored."""
    if quantization is None:
        return "| weights | not quantized |"
    return f"| weights | {quantization['bits']}-bit, group size {quantization['group_size']} |"


NOT_QUANTIZED = weights_row(None)


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
    rows = {
        "target": (source["verifier"] or {}).get("name_or_path"),
        "source format": source["format"],
        "layers": _layers(config),
        "hidden size": config.hidden_size,
        "block size (anchor included)": config.block_size,
        "taps (0-based target layers)": _taps(config),
        "mask token": config.mask_token_id,
        "brings its own": _own_tables(config),
        "candidates of the selector": config.selector_top_k,
    }
    lines = [f"| {key} | {value} |" for key, value in rows.items() if value not in (None, "")]
    table = "\n".join([*lines, weights_row(quantization)])
    body = _BODY.format(origin=origin + revision, table=table)
    return "\n".join(front) + "\n" + body


def _layers(config: DrafterConfig) -> str:
    """Such as "6, of which 5 sliding over 4096 rows and 5 causal"."""
    parts = []
    if any(config.sliding):
        parts.append(f"{sum(config.sliding)} sliding over {counted(config.sliding_window, 'row')}")
    if any(config.causal):
        parts.append(f"{sum(config.causal)} causal")
    return f"{config.num_hidden_layers}{', of which ' if parts else ''}{' and '.join(parts)}"


def _taps(config: DrafterConfig) -> str:
    if not config.target_layer_ids:
        return "none: the target's last hidden state"
    depth = f" of {config.num_target_layers}" if config.num_target_layers else ""
    return ", ".join(map(str, config.target_layer_ids)) + depth


def _own_tables(config: DrafterConfig) -> str:
    rows = config.draft_vocab_size or config.vocab_size
    tables = {
        "embedding table": config.has_embed_tokens,
        f"head of {rows} tokens": config.has_lm_head,
        "mask embedding": config.has_mask_embedding,
    }
    return ", ".join(name for name, has_it in tables.items() if has_it)
