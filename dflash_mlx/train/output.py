"""A trained drafter as a folder in MLX format, with its card."""

import json
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten
from mlx_lm.utils import save_model

from ..drafter.config import DrafterConfig
from ..drafter.model import Drafter
from ..loading.embedded import TARGET_NAME
from .blocks import Sequence
from .disk import Log, replacing, writing
from .forward import Parameters
from .recipe import Recipe

WIDTH, HEIGHT = 60, 10
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_CARD = """---
library_name: mlx
pipeline_tag: text-generation
tags:
- mlx
- dflash
- speculative-decoding
---

# DFlash drafter in MLX format

Trained by dflash-mlx for {target}. It drafts blocks for that target and does not generate text
alone.

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
"""


def training_facts(
    recipe: Recipe, config: DrafterConfig, sequences: list[Sequence]
) -> dict[str, Any]:
    """What a drafter's card says of its training."""
    objective = recipe.objective(config.block_size)
    weighting = {
        "decay": f"decay with gamma {objective.gamma:g}",
        "dpace": f"D-PACE with alpha {objective.alpha:g}",
        "uniform": "uniform",
    }[objective.weighting]
    loss = {"ce": "cross entropy", "kl": f"KL at temperature {objective.temperature:g}"}
    target = Path(recipe.model).name if recipe.model else TARGET_NAME
    if recipe.adapter_path:
        target += f" with the adapters {Path(recipe.adapter_path).name}"
    return {
        "target": target,
        "begun_from": Path(recipe.init_from).name if recipe.init_from else "random weights",
        "objective": f"{loss[objective.loss]}, weights: {weighting}",
        "sequences": len(sequences),
        "tokens_of_answers": int(sum(s.supervised.sum() for s in sequences)),
        "planned_steps": recipe.steps,
        "sequences_a_step": recipe.batch_size,
        "anchors_a_sequence": recipe.anchors,
        "learning_rate": recipe.learning_rate,
        "seed": recipe.seed,
    }


@dataclass
class Output:
    """The folder that a drafter in training is written to.

    Attributes:
        folder: of the drafter.
        config: the drafter's.
        dtype: to store the weights in.
        facts: about the training, for config.json and from there for the card.
    """

    folder: Path
    config: DrafterConfig
    dtype: mx.Dtype
    facts: dict[str, Any]

    def write(self, parameters: Parameters, log: Log, step: int, tau: float | None) -> None:
        """Write config.json, the weights and README.md; what was there before is replaced.

        Args:
            parameters: to be written.
            log: for the card's curves.
            step: steps that were taken to come to them.
            tau: their simulated τ, or None if nothing is held out.

        Raises:
            UserError: they cannot be written; what was there before still is.
        """
        drafter = Drafter(self.config)
        drafter.update(tree_unflatten(list(parameters.items())))
        drafter.set_dtype(self.dtype)
        mx.eval(drafter.parameters())
        trainer = f"dflash-mlx {version('dflash-mlx')}"
        reached = {"steps": step, "simulated_tau": tau and round(tau, 3)}
        source = {"trainer": trainer, "license": None, **self.facts, **reached}
        text = json.dumps(self.config.to_dict() | {"source": source}, indent=4)
        # Beside the folder's other files, of which these replace a few.
        partial = self.folder / "training" / "drafter.partial"
        try:
            with writing(self.folder):
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
                save_model(partial, drafter, donate_model=True)
                (partial / "config.json").write_text(text + "\n", encoding="utf-8")
                for file in partial.iterdir():
                    file.replace(self.folder / file.name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        self.write_card(log)

    def write_card(self, log: Log) -> None:
        """Write README.md for the drafter that is there, with the curves as far as the log goes.

        Raises:
            UserError: it cannot be written.
        """
        facts = self._card_facts().items()
        table = "\n".join(f"| {k.replace('_', ' ')} | {v} |" for k, v in facts if v is not None)
        named = {"training loss": "loss", "held-out loss": "eval_loss", "simulated τ": "tau"}
        curves = [chart(title, log.curve(name)) for title, name in named.items() if log.curve(name)]
        text = _CARD.format(target=self.facts["target"], table=table, curves="\n\n".join(curves))
        with replacing(self.folder / "README.md") as partial:
            partial.write_text(text, encoding="utf-8")

    def _card_facts(self) -> dict[str, Any]:
        config = self.config
        source = json.loads((self.folder / "config.json").read_bytes())["source"]
        taps = ", ".join(map(str, config.target_layer_ids)) or "the final norm"
        mask = "an embedding of its own" if config.has_mask_embedding else config.mask_token_id
        return {
            "layers": config.num_hidden_layers,
            "hidden size": config.hidden_size,
            "block size (anchor included)": config.block_size,
            "taps (0-based target layers)": f"{taps} of {config.num_target_layers}",
            "mask token": mask,
            "draft passes": config.draft_passes,
            "weights": "not quantized",
            **{name: fact for name, fact in source.items() if name not in ("trainer", "license")},
        }


def chart(title: str, points: list[tuple[int, float]]) -> str:
    """Bars over the steps, with the largest and the smallest value at the side.

    Args:
        title: what the values are.
        points: steps, ascending, and finite values; several that fall on one column are averaged.
    """
    if not points:
        return f"{title}: no values yet"
    first, last = points[0][0], points[-1][0]
    columns: list[list[float]] = [[] for _ in range(min(WIDTH, len(points)))]
    for step, value in points:
        at = (step - first) * (len(columns) - 1) // max(last - first, 1)
        columns[at].append(value)
    heights = [sum(c) / len(c) if c else None for c in columns]
    known = [h for h in heights if h is not None]
    low, high = min(known), max(known)
    unit = (high - low) / (HEIGHT * 8 - 1) or 1.0
    # The smallest value still shows as one eighth.
    filled = [0 if h is None else 1 + round((h - low) / unit) for h in heights]
    # Of a constant, the lower label alone: that is where its bars are.
    labels = {HEIGHT - 1: f"{high:.4g}" if high > low else "", 0: f"{low:.4g}"}
    width = max(map(len, labels.values()))
    lines = [title]
    for row in reversed(range(HEIGHT)):
        bar = "".join(_EIGHTHS[min(max(f - 8 * row, 0), 8)] for f in filled)
        lines.append(f"{labels.get(row, ''):>{width}} │{bar.rstrip()}")
    lines.append(f"{'':>{width}} └ step {first} to {last}")
    return "\n".join(lines)
