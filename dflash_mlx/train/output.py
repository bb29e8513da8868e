"""A trained drafter as a folder in MLX format."""

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
from .chart import chart
from .disk import Log, replacing, writing
from .forward import Parameters

_BODY = """
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
        front = ["---", "library_name: mlx", "pipeline_tag: text-generation"]
        front += ["tags:", "- mlx", "- dflash", "- speculative-decoding", "---"]
        rows = self._rows().items()
        table = "\n".join(f"| {k.replace('_', ' ')} | {v} |" for k, v in rows if v is not None)
        named = {"training loss": "loss", "held-out loss": "eval_loss", "simulated τ": "tau"}
        curves = [chart(title, log.curve(name)) for title, name in named.items() if log.curve(name)]
        body = _BODY.format(target=self.facts["target"], table=table, curves="\n\n".join(curves))
        text = "\n".join(front) + "\n" + body
        with replacing(self.folder / "README.md") as partial:
            partial.write_text(text, encoding="utf-8")

    def _rows(self) -> dict[str, object]:
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
