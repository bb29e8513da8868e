"""A trained drafter as a folder in MLX format."""

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from textwrap import dedent
from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten
from mlx_lm.utils import save_model

from ..drafter.config import DrafterConfig
from ..drafter.model import Drafter
from .chart import chart
from .learner import Parameters
from .log import Log


def write_drafter(
    folder: Path,
    config: DrafterConfig,
    parameters: Parameters,
    dtype: mx.Dtype,
    facts: dict[str, Any],
    log: Log,
) -> None:
    """Write config.json, the weights and README.md; what was there before is replaced.

    Args:
        folder: of the drafter.
        config: the drafter's.
        parameters: float32, by name.
        dtype: to store them in.
        facts: about the training, for the card; they are recorded in config.json too.
        log: of the training so far, for the card's curves.
    """
    drafter = Drafter(config)
    drafter.update(tree_unflatten(list(parameters.items())))
    drafter.set_dtype(dtype)
    partial = folder / "training" / "drafter.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_model(partial, drafter, donate_model=True)
    source = {"trainer": f"dflash-mlx {version('dflash-mlx')}", "license": None, **facts}
    text = json.dumps(config.to_dict() | {"source": source}, indent=4)
    (partial / "config.json").write_text(text + "\n", encoding="utf-8")
    (partial / "README.md").write_text(_card(config, facts, log), encoding="utf-8")
    for file in partial.iterdir():
        file.replace(folder / file.name)
    partial.rmdir()


def _card(config: DrafterConfig, facts: dict[str, Any], log: Log) -> str:
    front = ["---", "library_name: mlx", "pipeline_tag: text-generation"]
    front += ["tags:", "- mlx", "- dflash", "- speculative-decoding", "---"]
    rows = {
        "layers": config.num_hidden_layers,
        "hidden size": config.hidden_size,
        "block size (anchor included)": config.block_size,
        "taps (0-based target layers)": f"{', '.join(map(str, config.target_layer_ids))} "
        f"of {config.num_target_layers}",
        "mask token": "an embedding of its own"
        if config.has_mask_embedding
        else config.mask_token_id,
        **facts,
    }
    table = "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in rows.items())
    body = dedent("""
        # DFlash drafter in MLX format

        Trained by dflash-mlx for {target}. It drafts blocks for that target and does not generate
        text alone.

        | | |
        |---|---|
        {table}

        ## Use

        ```bash
        dflash-mlx generate --model TARGET --draft-model THIS_FOLDER --prompt "Hello"
        ```

        ## Training

        τ is simulated on held-out sequences: tokens a round, the bonus included.

        ```text
        {curves}
        ```
        """)
    named = {"training loss": "loss", "held-out loss": "eval_loss", "simulated τ": "tau"}
    curves = [chart(title, points) for title, name in named.items() if (points := log.curve(name))]
    body = body.format(target=facts["target"], table=table, curves="\n\n".join(curves))
    return "\n".join(front) + "\n" + body
