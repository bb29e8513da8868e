"""What a training is asked for: the one table of its options."""

from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from ..convert.weights import DTYPES
from ..engine.option import OptionTable, option
from ..engine.sampling import Sampling
from ..errors import UserError
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


_data, _drafter, _objective, _loop = (
    partial(option, group=name) for name in ("data", "drafter", "objective", "training")
)
_TWENTIETH = "a twentieth of all, at least 10"


@dataclass(frozen=True, kw_only=True)
class Recipe(OptionTable):
    """All that ``dflash-mlx train`` can be told; a None is replaced once its default is known.

    Raises:
        UserError: a value is out of its range, or has no effect beside the others.
    """

    model: str | None = option(None, "the target", unset="the embedded SmolLM2-135M-Instruct")
    adapter_path: str | None = option(None, "folder with LoRA adapters for the target")
    revision: str | None = option(None, "branch, tag or commit of the target")
    trust_remote_code: bool = option(
        False, "allow the target and its tokenizer to bring their own code"
    )
    output: Path = option(MISSING, "folder for the drafter")
    dtype: str | None = option(
        None,
        "dtype of the drafter's weights in OUTPUT",
        unset="the target's",
        metavar="{float16,bfloat16,float32}",
    )
    resume: bool = option(False, "go on with an interrupted training in OUTPUT")

    data: Path | None = option(
        None,
        "JSONL of mlx-lm's formats (messages; prompt and completion; prompt; text), or a folder "
        "with train.jsonl and perhaps valid.jsonl",
        group="data",
    )
    self_prompts: int = _data(
        0,
        "have the target invent N prompts by continuing the user's turn of its template",
        metavar="N",
        least=0,
    )
    regenerate: bool | None = _data(
        None,
        "have the target answer every prompt anew, or none",
        unset="those without an answer",
    )
    max_tokens: int = _data(512, "longest answer to write", least=1)
    temp: float = _data(0.0, "temperature of answers; 0 is greedy")
    top_p: float = _data(0.0, "nucleus of answers; 0 keeps all")
    generation_batch: int = _data(32, "texts that the target writes at a time", least=1)
    template_options: dict[str, Any] | None = option(
        None,
        "JSON options for the chat template, the same as in use later, such as "
        "'{\"enable_thinking\": false}'",
        group="data",
        flags=("--chat-template-config",),
        metavar="JSON",
    )
    max_seq_length: int = _data(2048, "cut longer sequences", least=2)
    held_out: int | None = _data(
        None,
        "sequences to evaluate on",
        unset="a twentieth, at most 32, or the first 32 of valid.jsonl",
        metavar="N",
        least=0,
    )

    init_from: str | None = _drafter(None, "begin with this drafter, a folder or a Hub id")
    layers: int | None = _drafter(
        None, "decoder layers", unset="5; fewer for a small target", least=1
    )
    taps: tuple[int, ...] | None = _drafter(
        None, "target layers to read, 0-based, such as 1,9,17", unset="5"
    )
    block_size: int | None = _drafter(
        None, "largest block: drafts and the token before them", unset="16", least=1
    )
    intermediate_size: int | None = _drafter(
        None, "width of the MLPs", unset="the target's", least=1
    )
    window: int | None = _drafter(
        None, "context positions that a layer sees", unset="all", metavar="W", least=1
    )
    causal: bool = _drafter(False, "a row of a block sees only those before it")
    dflash2: bool = _drafter(False, "with DFlash 2's convolutions and selector")
    draft_passes: int | None = _drafter(
        None, "2: a second pass sees the first's leading tokens", unset="1", choices=(1, 2)
    )
    draft_prefix: int | None = _drafter(
        None,
        "tokens given in a second pass, the one before the drafts included",
        unset="a quarter of the block",
    )
    mask_token: int | None = _drafter(
        None,
        "id of the token that stands for what is to be drafted",
        unset="one that no text holds",
    )

    loss: str = _objective(
        "ce",
        "cross entropy, or the divergence from the target's distribution",
        choices=LOSSES,
    )
    weighting: str = _objective(
        "decay", "how the positions of a block count in the loss", choices=WEIGHTINGS
    )
    gamma: float | None = _objective(
        None, "positions over which a weight falls to 1/e", unset="7, 5, 4 for blocks of 16, 10, 8"
    )
    dpace_alpha: float | None = _objective(
        None, "how far dpace draws confidences towards 1", unset="0.5"
    )
    kd_temperature: float | None = _objective(None, "temperature of kl", unset="1")
    anchors: int = _objective(512, "blocks a sequence and step", least=1)

    epochs: float | None = _loop(None, "times that all sequences are seen", unset="6", above=0)
    steps: int | None = _loop(None, "updates, instead of epochs", least=1)
    batch_size: int = _loop(8, "sequences a step; one is in memory at a time", least=1)
    learning_rate: float = _loop(6e-4, "peak of the learning rate", above=0)
    warmup: float = _loop(
        0.04, "share of the steps in which the learning rate rises", least=0, most=1
    )
    clip: float = _loop(1.0, "largest gradient norm", above=0)
    weight_decay: float = _loop(0.0, "weight decay of the optimizer", least=0)
    chunk_blocks: int = _loop(
        64, "blocks whose logits exist at a time; fewer need less memory", least=1
    )
    eval_every: int | None = _loop(None, "steps between evaluations", unset=_TWENTIETH, least=1)
    save_every: int | None = _loop(None, "steps between checkpoints", unset=_TWENTIETH, least=1)
    patience: int = _loop(
        0, "evaluations without a better τ before training stops; 0 is never", least=0
    )
    time_limit: float | None = _loop(
        None, "minutes of training in this run", metavar="MIN", above=0
    )
    cache_features: float = _loop(
        0.0,
        "keep the target's features on disk, up to so many gigabytes; what is there stays, also if "
        "it is more",
        metavar="GB",
        least=0.0,
    )
    seed: int = _loop(0, "seed of all that is random", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        Sampling(self.temp, self.top_p, seed=self.seed)
        if self.top_p and not self.temp:
            raise UserError("`top_p` has no effect on greedy answers; give `temp` as well.")
        if self.self_prompts and self.regenerate is False:
            raise UserError(
                "Prompts that `self_prompts` invents have no answers; leave --no-regenerate out."
            )
        if self.epochs is not None and self.steps is not None:
            raise UserError("Training goes by `epochs` or by `steps`, not by both.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise UserError(f"`dtype` must be one of {', '.join(DTYPES)}, not {self.dtype!r}.")
        if self.patience and self.held_out == 0:
            raise UserError("`patience` has no effect without held-out sequences; leave it out.")
        shape = [o.name for o in fields(self) if o.metadata["group"] == "drafter"]
        if self.init_from is not None and self.gives(*(set(shape) - set(_BESIDE_INIT))):
            raise UserError(
                "A drafter given by `init_from` keeps its layers, taps, block size and masks; "
                "leave those options out."
            )
        for name, (choice, needed) in _OF_CHOICES.items():
            if getattr(self, name) is not None and getattr(self, choice) != needed:
                raise UserError(
                    f"`{name}` has no effect with {choice} {getattr(self, choice)}; leave it "
                    f"out, or give `{choice}` {needed}."
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
