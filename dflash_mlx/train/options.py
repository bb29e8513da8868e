"""What a training is asked for, and the record of it that a resumed run is checked against."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..convert.writer import DTYPES
from ..drafter.config import DrafterConfig
from ..errors import UserError
from .design import BLOCK_SIZE, Shape
from .disk import replacing
from .losses import Objective, default_gamma
from .written import Writing

EPOCHS = 6.0
# May differ between a run and its continuation: they change no number, or only by rounding.
_FREE = ("output", "resume", "time_limit", "save_every", "cache_features", "chunk_blocks")
# The answers and the invented prompts depend on these, and perhaps took hours.
_OF_ANSWERS = (
    "model",
    "adapter_path",
    "revision",
    "template_options",
    "self_prompts",
    "max_tokens",
    "temp",
    "top_p",
    "seed",
    "generation_batch",
)


@dataclass(frozen=True)
class Options:
    """Everything that ``dflash-mlx train`` can be told; the defaults are its defaults.

    Attributes:
        output: folder of the drafter; what is needed to resume lies in ``training`` inside it.
        model: the target, as for :func:`dflash_mlx.load`; None takes the embedded one.
        adapter_path: LoRA adapters of the target.
        revision: of the target on the Hub.
        trust_remote_code: whether the target may bring its own code.
        data: a JSONL file, or a folder with ``train.jsonl`` and perhaps ``valid.jsonl``.
        self_prompts: how many prompts the target invents.
        regenerate: True has the target answer every prompt anew, None those without an answer,
            False none.
        writing: how the target answers.
        template_options: for the chat template.
        max_seq_length: longer sequences are cut.
        held_out: how many sequences to evaluate on; None for a twentieth, at most 32,
            or as many of ``valid.jsonl``.
        init_from: a drafter to begin with.
        shape: of a new drafter.
        loss, weighting, gamma, dpace_alpha, kd_temperature: the objective; gamma None goes by the
            block size, the others None are 0.5 and 1.
        draft_passes: 2 trains for a second draft pass; None keeps what ``init_from`` has.
        draft_prefix: rows given in the second pass; None for a quarter of the block.
        epochs, steps: how long, in one or the other; both None is 6 epochs.
        batch_size, anchors, chunk_blocks: how much at a time.
        learning_rate, warmup, clip, weight_decay: of AdamW.
        eval_every, save_every: steps; None for a twentieth of all, but 10 at least.
        patience: evaluations without a better τ before training stops; 0 never stops.
        time_limit: minutes of training, or None.
        cache_features: gigabytes of features to keep on disk.
        dtype: to store the drafter in, a key of ``DTYPES``; None for the target's.
        seed: of everything random.
        resume: go on with what is in the output folder.
    """

    output: Path
    model: str | None = None
    adapter_path: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    data: Path | None = None
    self_prompts: int = 0
    regenerate: bool | None = None
    writing: Writing = field(default_factory=Writing)
    template_options: dict[str, Any] = field(default_factory=dict)
    max_seq_length: int = 2048
    held_out: int | None = None
    init_from: str | None = None
    shape: Shape = field(default_factory=Shape)
    loss: str = "ce"
    weighting: str = "decay"
    gamma: float | None = None
    dpace_alpha: float | None = None
    kd_temperature: float | None = None
    draft_passes: int | None = None
    draft_prefix: int | None = None
    epochs: float | None = None
    steps: int | None = None
    batch_size: int = 8
    anchors: int = 512
    chunk_blocks: int = 64
    learning_rate: float = 6e-4
    warmup: float = 0.04
    clip: float = 1.0
    weight_decay: float = 0.0
    eval_every: int | None = None
    save_every: int | None = None
    patience: int = 0
    time_limit: float | None = None
    cache_features: float = 0.0
    dtype: str | None = None
    seed: int = 0
    resume: bool = False

    @property
    def folder(self) -> Path:
        """Where what is needed to resume lies."""
        return self.output / "training"

    def __post_init__(self) -> None:
        if not self.data and not self.self_prompts:
            raise UserError("There is nothing to train on; give --data, --self-prompts or both.")
        if self.self_prompts and self.regenerate is False:
            raise UserError(
                "Prompts that --self-prompts invents have no answers; leave --no-regenerate out."
            )
        if self.epochs is not None and self.steps is not None:
            raise UserError("Training goes by --epochs or by --steps, not by both.")
        least = {
            "self_prompts": 0,
            "max_seq_length": 2,
            "held_out": 0,
            "steps": 1,
            "batch_size": 1,
            "anchors": 1,
            "chunk_blocks": 1,
            "eval_every": 1,
            "save_every": 1,
            "patience": 0,
            "warmup": 0,
            "weight_decay": 0,
            "cache_features": 0,
            "seed": 0,
        }
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and not low <= value < math.inf:
                raise UserError(f"{name} must be {low} or more, not {value}.")
        for name in ("epochs", "learning_rate", "clip", "time_limit"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"{name} must be above 0 and finite, not {value}.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise UserError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}.")
        if self.patience and self.held_out == 0:
            raise UserError("patience has no effect without held-out sequences; leave it out.")
        if self.warmup > 1:
            raise UserError(f"warmup is a fraction of the steps, at most 1, not {self.warmup}.")
        if self.init_from is not None and self.shape != Shape():
            raise UserError(
                "A drafter given by --init-from keeps its layers, taps, block size and masks; "
                "leave those options out."
            )
        self._check_objective()

    def _check_objective(self) -> None:
        """That no part of another objective was given."""
        parts = {
            "gamma": ("weighting", "decay"),
            "dpace_alpha": ("weighting", "dpace"),
            "kd_temperature": ("loss", "kl"),
        }
        for name, (choice, needed) in parts.items():
            if getattr(self, name) is not None and getattr(self, choice) != needed:
                raise UserError(
                    f"{name} has no effect with {choice} {getattr(self, choice)}; leave it out, or "
                    f"give --{choice} {needed}."
                )
        self.objective(self.shape.block_size or BLOCK_SIZE)

    def objective(self, block_size: int) -> Objective:
        """The objective for blocks of this size."""
        return Objective(
            gamma=default_gamma(block_size) if self.gamma is None else self.gamma,
            loss=self.loss,
            weighting=self.weighting,
            alpha=0.5 if self.dpace_alpha is None else self.dpace_alpha,
            temperature=1.0 if self.kd_temperature is None else self.kd_temperature,
        )

    def passes(self, config: DrafterConfig) -> DrafterConfig:
        """The drafter's configuration with as many draft passes as were asked for."""
        if self.draft_passes is None and self.draft_prefix is None:
            return config
        passes = config.draft_passes if self.draft_passes is None else self.draft_passes
        prefix = self.draft_prefix
        if passes == 1 and prefix is not None:
            raise UserError("draft_prefix is for a second pass; give --draft-passes 2 as well.")
        if passes == 2 and config.block_size < 3:
            raise UserError(f"Blocks of {config.block_size} are too small for two draft passes.")
        if passes == 2 and prefix is None:
            prefix = config.draft_prefix or max(2, config.block_size // 4)
        return replace(config, draft_passes=passes, draft_prefix=prefix)

    def record(self, path: Path, begun: bool) -> None:
        """Write the options to ``path``, or check that they are those written there.

        Args:
            path: a JSON file.
            begun: whether steps were taken. Before, only what the answers depend on must be the
                same.

        Raises:
            UserError: they differ in something that changes the numbers, or the file is damaged or
                cannot be written.
        """
        mine = self._recorded()
        if path.exists():
            found = _read(path)
            different = [name for name in mine if mine[name] != found.get(name)]
            if not begun:
                different = [name for name in different if name in _OF_ANSWERS]
            if different:
                raise UserError(
                    f"This training was begun with other values of {', '.join(different)} (see "
                    f"{path}); give the same, or another output folder."
                )
        with replacing(path) as partial:
            partial.write_text(json.dumps(mine, indent=4) + "\n", encoding="utf-8")

    def _recorded(self) -> dict[str, Any]:
        """All that numbers depend on, by the names of the command's options."""
        flat = asdict(self)
        writing, shape = flat.pop("writing"), flat.pop("shape")
        writing["generation_batch"] = writing.pop("batch")
        options = writing | shape | flat
        for name in ("model", "adapter_path", "init_from"):
            # The same folder may be named in several ways.
            if options[name] is not None and Path(options[name]).expanduser().is_dir():
                options[name] = str(Path(options[name]).expanduser().resolve())
        options["data"] = _digest(self.data)
        kept = {name: value for name, value in options.items() if name not in _FREE}
        return json.loads(json.dumps(kept))


def _digest(data: Path | None) -> str | None:
    """The SHA-256 of the data's files."""
    if data is None:
        return None
    files = [data / "train.jsonl", data / "valid.jsonl"] if data.is_dir() else [data]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes() if file.is_file() else b"")
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(
            f"{path} is damaged; remove it, and resume with the options that the training was "
            "begun with."
        )
    return found
