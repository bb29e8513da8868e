"""``dflash-mlx inspect``: what a checkpoint is, before its weights are downloaded."""

import argparse
from collections.abc import Iterator
from typing import Any

from ..errors import counted, printable
from .json_output import print_json

_UNITS = ("B", "kB", "MB", "GB", "TB")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register the ``inspect`` command."""
    parser = subparsers.add_parser(
        "inspect",
        description=(
            "Say what a checkpoint is, which targets it fits, what it needs, and whether this "
            "version runs it (exit code 0, else 1). Of a Hugging Face repository only config.json, "
            "the model card and the headers of the weight files are downloaded."
        ),
    )
    parser.add_argument("model", help="a drafter or a target: a folder or a Hugging Face id")
    parser.add_argument("--revision", help="branch, tag or commit of a Hugging Face id")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Inspect, and print what was found.

    Returns:
        0 if this version runs it, else 1.

    Raises:
        UserError: There is no such checkpoint.
    """
    from ..convert.inspection import inspect

    found = inspect(args.model, args.revision)
    if args.json:
        print_json(found)
    else:
        for label, text in _lines(found):
            print(f"{printable(label):<12} {printable(text)}")
    return 0 if found["problem"] is None else 1


def _lines(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Label and text of each line; what is not known has none."""
    revision = f" at {found['revision']}" if found["revision"] else ""
    yield "checkpoint", found["name"] + revision
    yield "kind", f"{found['kind']} ({found['format']})"
    yield from _drafter(found.get("drafter", {}))
    if "target" in found:
        yield from _target(found["target"], found["drafters"])
    weights = found["weights"]
    parts = [_bytes(weights["bytes"]), counted(weights["files"], "file")]
    if "tensors" in weights:
        parts.append(counted(weights["tensors"], "tensor"))
    if weights.get("quantization"):
        parts.append(f"quantized: {weights['quantization']}")
    yield "weights", ", ".join(parts)
    yield "licence", found["license"] or "the model card names none"
    if "fits" in found:
        yield from _fits(found["fits"])
    if needs := found.get("needs"):
        each = _bytes(needs["memory_per_1000_tokens"])
        yield "disk", _bytes(needs["disk"])
        yield "memory", f"{_bytes(needs['memory'])}, and {each} for each 1000 tokens of context"
    if found["problem"] is not None:
        yield "runs", f"no: {found['problem']}"
    elif "target" in found:
        yield "runs", "in mlx-lm; its caches and layers are checked when it is loaded"
    else:
        yield "runs", "yes"


def _drafter(drafter: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if "layers" not in drafter:
        # Of a config that is not read, under its own names.
        yield from ((key, str(value)) for key, value in drafter.items())
        return
    layers = [str(drafter["layers"])]
    if drafter["sliding_layers"]:
        rows = counted(drafter["sliding_window"], "row")
        layers.append(f"{drafter['sliding_layers']} sliding over {rows}")
    if drafter["causal_layers"]:
        layers.append(f"{drafter['causal_layers']} causal")
    if drafter["dflash2"]:
        layers.append("with DFlash 2's convolutions and selector")
    queries, keys, width = drafter["heads"]
    yield "layers", ", ".join(layers)
    yield "width", f"{drafter['hidden_size']}, {queries} query and {keys} K/V heads of {width}"
    yield "block size", str(drafter["block_size"])
    yield "taps", ", ".join(map(str, drafter["taps"])) or "none"
    draft = drafter["draft_vocab_size"]
    yield "vocabulary", f"{drafter['vocab_size']}{f', of which it drafts {draft}' if draft else ''}"
    yield "own tables", ", ".join(drafter["own"]) or "none"


def _target(target: dict[str, Any], drafters: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    layers, width, vocabulary = (
        target[key] for key in ("num_hidden_layers", "hidden_size", "vocab_size")
    )
    yield "sizes", f"{counted(layers, 'layer')} of width {width}, vocabulary {vocabulary}"
    yield "quantized", target["quantization"] or "no"
    for drafter in drafters:
        revision = f" at {drafter['revision']}" if drafter["revision"] else ""
        problem = f" (does not run: {drafter['problem']})" if drafter["problem"] else ""
        made_for = f", for {', '.join(drafter['made_for'])}"
        yield "drafter", f"{drafter['drafter']}{revision}{made_for}{problem}"
    if not drafters:
        yield "drafter", "none is known"


def _fits(fits: dict[str, Any]) -> Iterator[tuple[str, str]]:
    layers = counted(fits["num_layers"], "layer") if fits["num_layers"] else "any depth"
    made_for = ", ".join(fits["made_for"])
    sizes = f"width {fits['hidden_size']}, {layers}, vocabulary {fits['vocab_size']} or padded"
    yield "made for", made_for or "a target that it does not name"
    yield "fits", f"targets of {sizes}"
    if fits["same_sizes"]:
        yield "", f"of these sizes are {', '.join(fits['same_sizes'])}"


def _bytes(size: float) -> str:
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            break
        size /= 1000
    return f"{size:.3g} {unit}"
