"""What a training is asked for: the one table of its options."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from ..convert.weights import DTYPES
from ..engine.option import check_number, option
from ..engine.sampling import Sampling
from ..errors import UserError, whole_number
from .losses import LOSSES, WEIGHTINGS, Objective, default_gamma

BLOCK_SIZE, EPOCHS = 16, 6.0
# How the target writes answers.
WRITING = ("max_tokens", "temp", "top_p", "generation_batch")
# What a drafter to begin from does not have of its own.
_BESIDE_INIT = ("init_from", "draft_passes", "draft_prefix")
# What has an effect by one choice alone.
_OF_CHOICES = {
    "gamma": ("weighting", "decay"),
    "dpace_alpha": ("weighting", "dpace"),
    "kd_temperature": ("loss", "kl"),
}


# An option's group is the part of the help that it stands in. It may have a ``least`` value, of
# which the type is that of all its values, or one that it must be ``above``.
_general, _data, _drafter, _objective, _loop = (
    partial(option, group=name) for name in (None, "data", "drafter", "objective", "training")
)
_TWENTIETH = "steps (default: a twentieth of all, at least 10)"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that ``dflash-mlx train`` can be told; a None is replaced once its default is known.

    Raises:
        UserError: a value is out of its range, or has no effect beside the others.
    """

    model: str | None = _general(None, "the target (default: the embedded SmolLM2-135M-Instruct)")
    adapter_path: str | None = _general(None, "folder with LoRA adapters for the target")
    revision: str | None = _general(None, "branch, tag or commit of the target")
    trust_remote_code: bool = _general(
        False, "allow the target and its tokenizer to bring their own code"
    )
    output: Path = field(metadata={"help": "folder for the drafter", "group": None})
    dtype: str | None = _general(
        None,
        "dtype of the drafter's weights in OUTPUT (default: the target's)",
        metavar="{float16,bfloat16,float32}",
    )
    resume: bool = _general(False, "go on with an interrupted training in OUTPUT")

    data: Path | None = field(
        default=None,
        metadata={
            "group": "data",
            "help": "JSONL of mlx-lm's formats (messages; prompt and completion; prompt; text), "
            "or a folder with train.jsonl and perhaps valid.jsonl",
        },
    )
    self_prompts: int = _data(
        0,
        "have the target invent N prompts by continuing the user's turn of its template",
        metavar="N",
        least=0,
    )
    regenerate: bool | None = _data(
        None,
        "have the target answer every prompt anew, or none (default: those without an answer)",
    )
    max_tokens: int = _data(512, "longest answer to write (default: 512)", least=1)
    temp: float = _data(0.0, "temperature of answers (default: 0, greedy)")
    top_p: float = _data(0.0, "nucleus of answers (default: all)")
    generation_batch: int = _data(
        32, "texts that the target writes at a time (default: 32)", least=1
    )
    template_options: dict[str, Any] | None = field(
        default=None,
        metadata={
            "group": "data",
            "flags": ("--chat-template-config",),
            "metavar": "CHAT_TEMPLATE_CONFIG",
            "help": "JSON options for the chat template, the same as in use later, such as "
            "'{\"enable_thinking\": false}'",
        },
    )
    max_seq_length: int = _data(2048, "cut longer sequences (default: 2048)", least=2)
    held_out: int | None = _data(
        None,
        "sequences to evaluate on (default: a twentieth, at most 32, or the first 32 of "
        "valid.jsonl)",
        metavar="N",
        least=0,
    )

    init_from: str | None = _drafter(None, "begin with this drafter, a folder or a Hub id")
    layers: int | None = _drafter(None, "layers (default: 5; fewer for a small target)", least=1)
    taps: tuple[int, ...] | None = _drafter(
        None, "target layers to read, 0-based, such as 1,9,17 (default: 5)"
    )
    block_size: int | None = _drafter(None, "anchor included (default: 16)", least=1)
    intermediate_size: int | None = _drafter(None, "of the MLPs (default: the target's)", least=1)
    window: int | None = _drafter(
        None, "context rows that a layer sees (default: all)", metavar="W", least=1
    )
    causal: bool = _drafter(False, "a row of a block sees only those before it")
    dflash2: bool = _drafter(False, "with DFlash 2's convolutions and selector")
    draft_passes: int | None = _drafter(
        None, "2: a second pass sees the first's leading tokens (default: 1)", choices=(1, 2)
    )
    draft_prefix: int | None = _drafter(
        None, "rows given in a second pass, anchor included (default: a quarter of the block)"
    )
    mask_token: int | None = _drafter(None, "token id (default: one that no text holds)")

    loss: str = _objective(
        "ce",
        "cross entropy, or the divergence from the target's distribution (default: ce)",
        choices=LOSSES,
    )
    weighting: str = _objective("decay", "of a block's rows (default: decay)", choices=WEIGHTINGS)
    gamma: float | None = _objective(
        None, "of the decay (default: 7, 5, 4 for blocks of 16, 10, 8)"
    )
    dpace_alpha: float | None = _objective(None, "of dpace (default: 0.5)")
    kd_temperature: float | None = _objective(None, "temperature of kl (default: 1)")
    anchors: int = _objective(512, "blocks a sequence and step (default: 512)", least=1)

    epochs: float | None = _loop(None, "(default: 6)", above=0)
    steps: int | None = _loop(None, "updates, instead of epochs", least=1)
    batch_size: int = _loop(8, "sequences a step; one is in memory at a time (default: 8)", least=1)
    learning_rate: float = _loop(6e-4, "peak (default: 6e-4)", above=0)
    warmup: float = _loop(0.04, "fraction of the steps (default: 0.04)", least=0.0)
    clip: float = _loop(1.0, "gradient norm (default: 1)", above=0)
    weight_decay: float = _loop(0.0, "(default: 0)", least=0.0)
    chunk_blocks: int = _loop(
        64, "blocks whose logits exist at a time; fewer need less memory (default: 64)", least=1
    )
    eval_every: int | None = _loop(None, _TWENTIETH, least=1)
    save_every: int | None = _loop(None, _TWENTIETH, least=1)
    patience: int = _loop(
        0, "evaluations without a better τ before training stops (default: never)", least=0
    )
    time_limit: float | None = _loop(
        None, "minutes of training in this run", metavar="MIN", above=0
    )
    cache_features: float = _loop(
        0.0,
        "keep the target's features on disk, up to so many gigabytes; what is there stays, also if "
        "it is more (default: none)",
        metavar="GB",
        least=0.0,
    )
    seed: int = _loop(0, "(default: 0)", least=0)

    def __post_init__(self) -> None:
        Sampling(self.temp, self.top_p, seed=self.seed)
        for o in fields(self):
            _check_range(o.name, getattr(self, o.name), o.metadata)
        if self.top_p and not self.temp:
            raise UserError("`top_p` has no effect on greedy answers; give --temp as well.")
        if self.self_prompts and self.regenerate is False:
            raise UserError(
                "Prompts that --self-prompts invents have no answers; leave --no-regenerate out."
            )
        if self.epochs is not None and self.steps is not None:
            raise UserError("Training goes by --epochs or by --steps, not by both.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise UserError(f"`dtype` must be one of {', '.join(DTYPES)}, not {self.dtype!r}.")
        if self.patience and self.held_out == 0:
            raise UserError("`patience` has no effect without held-out sequences; leave it out.")
        if self.warmup > 1:
            raise UserError(f"`warmup` is a fraction of the steps, at most 1, not {self.warmup}.")
        shape = [o.name for o in fields(self) if o.metadata["group"] == "drafter"]
        if self.init_from is not None and self.gives(*(set(shape) - set(_BESIDE_INIT))):
            raise UserError(
                "A drafter given by --init-from keeps its layers, taps, block size and masks; "
                "leave those options out."
            )
        for name, (choice, needed) in _OF_CHOICES.items():
            if getattr(self, name) is not None and getattr(self, choice) != needed:
                raise UserError(
                    f"`{name}` has no effect with {choice} {getattr(self, choice)}; leave it out, "
                    f"or give --{choice} {needed}."
                )
        self.objective(self.block_size or BLOCK_SIZE)

    @property
    def folder(self) -> Path:
        """Where what is needed to resume lies."""
        return self.output / "training"

    def gives(self, *names: str) -> bool:
        """Whether one of these options is not what it is by default."""
        return any(getattr(self, name) != getattr(Recipe, name) for name in names)

    def objective(self, block_size: int) -> Objective:
        """The objective for blocks of this size."""
        return Objective(
            gamma=default_gamma(block_size) if self.gamma is None else self.gamma,
            loss=self.loss,
            weighting=self.weighting,
            alpha=0.5 if self.dpace_alpha is None else self.dpace_alpha,
            temperature=1.0 if self.kd_temperature is None else self.kd_temperature,
        )


def _check_range(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    least, above = limits.get("least"), limits.get("above")
    if value is None:
        return
    if least is not None:
        check = check_number if isinstance(least, float) else whole_number
        check(name, value, least)
    if above is not None and not above < value < math.inf:
        raise UserError(f"`{name}` must be above {above} and finite, not {value}.")
