"""A training from its recipe to the drafter's folder."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import dequantize_model, maybe_set_recommended_wired_limit

from ..convert import convert_cached
from ..convert.weights import DTYPES
from ..drafter.model import Drafter
from ..errors import UserError, counted
from ..files import check_free
from ..loading.loader import load, load_drafter
from ..loading.pair import Pair
from ..loading.pairing import check_pair
from ..target.target import Target
from .blocks import Sequence
from .design import design, new_drafter, with_passes
from .disk import replacing, writing
from .examples import Example
from .feature_cache import FeatureCache
from .forward import check_trainable
from .learner import Learner
from .optimizer import find_checkpoint
from .output import Output, chart, training_facts
from .prepare import Preparation, read_data
from .recipe import EPOCHS, WRITING, Recipe
from .trainer import Trainer
from .world import World

Say = Callable[[str], None]

# Below this τ a drafter is no better than none: 1 is plain decoding, and a draft costs something.
WORTHLESS = 1.05

# The answers and the invented prompts depend on these, and perhaps took hours.
_OF_ANSWERS = {
    *WRITING,
    "seed",
    "model",
    "adapter_path",
    "revision",
    "template_options",
    "self_prompts",
}
# May differ between a run and its continuation: they change no number, or only by rounding.
_FREE = {"output", "resume", "time_limit", "save_every", "cache_features", "chunk_blocks"}


def train(recipe: Recipe, say: Say = print) -> None:
    """Train a drafter and write it to ``recipe.output``.

    Args:
        recipe: what to do.
        say: called with each line for the user, in the first process alone.

    Raises:
        UserError: an option does not fit the target or the data, or training cannot go on.
        PeerStopped: that, or anything else, has ended another process of this training.
    """
    world = World()
    with world.together():
        _train(recipe, world, say if world.is_first else lambda line: None)


def _train(recipe: Recipe, world: World, say: Say) -> None:
    # First of all: it should not wait for a target to be loaded, or downloaded.
    data = world.agree(lambda: _data(recipe, world))
    pair, drafter, preparation = world.agree(lambda: _begin(recipe, data, world, say))
    # Only now: a mistake in the options should leave nothing behind.
    world.first(lambda: _record(recipe))
    sequences, held_out = preparation.sequences()
    untapped = pair.target
    # Without taps, the feature is what comes out of the final norm.
    taps = drafter.config.target_layer_ids or (untapped.num_layers,)
    target = Target(pair.model, taps, untapped.family)
    try:
        maybe_set_recommended_wired_limit()
        _describe(drafter, target, sequences, held_out, say)
        trainer = _trainer(recipe, drafter, target, sequences, held_out, world, say)
        reason = trainer.run()
    finally:
        target.release()
    _conclude(trainer, reason, say)


def _data(recipe: Recipe, world: World) -> tuple[list[Example], list[Example]]:
    """The data, where all that can be told without a target is in order."""
    if recipe.resume and not recipe.folder.is_dir():
        raise UserError(
            f"{recipe.output} holds no training to go on with; leave --resume out to begin one."
        )
    if not recipe.resume:
        if recipe.folder.exists():
            raise UserError(
                f"{recipe.output} already exists and holds a training; add --resume to go on with "
                "it, or choose another folder."
            )
        check_free(recipe.output)
    if recipe.batch_size % world.size:
        raise UserError(
            f"A batch of {counted(recipe.batch_size, 'sequence')} cannot be shared by "
            f"{world.size} processes; give a multiple."
        )
    return read_data(recipe)


def _begin(
    recipe: Recipe, data: tuple[list[Example], list[Example]], world: World, say: Say
) -> tuple[Pair, Drafter, Preparation]:
    pair, tokenizer = load(
        recipe.model,
        False,
        adapter_path=recipe.adapter_path,
        revision=recipe.revision,
        trust_remote_code=recipe.trust_remote_code,
        tokenizer_config={"trust_remote_code": True} if recipe.trust_remote_code else None,
    )
    drafter = _drafter(recipe, pair.target, tokenizer, pair.context_length)
    return pair, drafter, Preparation(pair.model, tokenizer, recipe, data, world, say)


def _drafter(
    recipe: Recipe, target: Target, tokenizer: TokenizerWrapper, context_length: int | None
) -> Drafter:
    if recipe.init_from is None:
        config = with_passes(design(target, tokenizer, context_length, recipe), recipe)
        check_pair(config, target)
        return new_drafter(config, target, recipe.seed)
    drafter = load_drafter(convert_cached(recipe.init_from))
    check_pair(drafter.config, target)
    check_trainable(drafter)
    drafter.config = with_passes(drafter.config, recipe)
    return dequantize_model(drafter)


def _record(recipe: Recipe) -> None:
    """Write the options to the folder, or check that they are those written there.

    Before the first step is taken, only what the answers depend on must be the same.
    """
    path, mine = recipe.folder / "options.json", _recorded(recipe)
    with writing(recipe.folder):
        recipe.folder.mkdir(parents=True, exist_ok=True)
    if path.exists():
        try:
            found = json.loads(path.read_bytes())
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise UserError(
                f"{path} is damaged; remove it, and resume with the options that the training was "
                "begun with."
            )
        names = mine if find_checkpoint(recipe.folder) else _OF_ANSWERS
        different = [name for name in mine if name in names and mine[name] != found.get(name)]
        if different:
            raise UserError(
                f"This training was begun with other values of {', '.join(different)} (see "
                f"{path}); give the same, or another output folder."
            )
    with replacing(path) as partial:
        partial.write_text(json.dumps(mine, indent=4) + "\n", encoding="utf-8")


def _recorded(recipe: Recipe) -> dict[str, Any]:
    """All that numbers depend on."""
    options = {name: value for name, value in vars(recipe).items() if name not in _FREE}
    for name in ("model", "adapter_path", "init_from"):
        # The same folder may be named in several ways.
        if options[name] is not None and Path(options[name]).expanduser().is_dir():
            options[name] = str(Path(options[name]).expanduser().resolve())
    if data := recipe.data:
        files = [data / "train.jsonl", data / "valid.jsonl"] if data.is_dir() else [data]
        contents = b"".join(file.read_bytes() for file in files if file.is_file())
        options["data"] = hashlib.sha256(contents).hexdigest()
    return json.loads(json.dumps(options))


def _trainer(
    recipe: Recipe,
    drafter: Drafter,
    target: Target,
    sequences: list[Sequence],
    held_out: list[Sequence],
    world: World,
    say: Say,
) -> Trainer:
    epochs = EPOCHS if recipe.epochs is None else recipe.epochs
    steps = recipe.steps or max(1, round(epochs * len(sequences) / recipe.batch_size))
    every = max(10, round(steps / 20))
    recipe = replace(
        recipe,
        epochs=None,
        steps=steps,
        eval_every=recipe.eval_every or every,
        save_every=recipe.save_every or every,
    )
    config = drafter.config
    objective, dtype = recipe.objective(config.block_size), forward_dtype(target.dtype)
    learner = Learner(drafter, target, objective, recipe.chunk_blocks, dtype)
    cache = recipe.folder / "features" if recipe.cache_features else None
    limit = int(recipe.cache_features * 1e9)
    # Nobody goes on before all have seen how much is there.
    source = world.agree(lambda: FeatureCache(learner, cache, limit, world.rank, world.size))
    stored = target.dtype if recipe.dtype is None else DTYPES[recipe.dtype]
    output = Output(recipe.output, config, stored, training_facts(recipe, config, sequences))
    return Trainer(learner, source, sequences, held_out, recipe, world, output, say)


def forward_dtype(target: mx.Dtype) -> mx.Dtype:
    """The dtype of the drafter's forward in training, for a target of dtype ``target``."""
    if mx.default_device() == mx.cpu:
        # It is fast in float32 alone.
        return mx.float32
    # Sums of hidden states are too large for float16, and gradients too small.
    return mx.bfloat16 if target == mx.float16 else target


def _describe(
    drafter: Drafter,
    target: Target,
    sequences: list[Sequence],
    held_out: list[Sequence],
    say: Say,
) -> None:
    config = drafter.config
    weights = sum(w.size for _, w in tree_flatten(drafter.parameters()))
    mask = "own embedding" if config.has_mask_embedding else f"token {config.mask_token_id}"
    parts = [
        f"{weights:,} weights",
        counted(config.num_hidden_layers, "layer"),
        f"block size {config.block_size}",
        f"taps {list(config.target_layer_ids)} of {target.num_layers}",
        f"mask {mask}",
        f"intermediate size {config.intermediate_size}",
        f"window {config.sliding_window or 'none'}",
        f"{'causal' if any(config.causal) else 'bidirectional'} blocks",
        "two draft passes" if config.draft_passes == 2 else "one draft pass",
    ]
    if config.selector_rank is not None:
        parts += [
            f"convolutions over {config.conv_kernel_size} rows in groups of "
            f"{config.conv_group_size}",
            f"selector of rank {config.selector_rank} among {config.selector_top_k}",
        ]
    say(f"Drafter: {', '.join(parts)}")
    for name, part in (("Training", sequences), ("Held out", held_out)):
        tokens = sum(len(s.tokens) for s in part)
        answers = sum(int(s.supervised.sum()) for s in part)
        say(
            f"{name}: {counted(len(part), 'sequence')}, {counted(tokens, 'token')}, {answers} of "
            "them answers"
        )


def _conclude(trainer: Trainer, reason: str, say: Say) -> None:
    progress, recipe = trainer.progress, trainer.recipe
    why = {
        "steps": "all steps are taken",
        "time": "the time limit is reached; --resume goes on",
        "patience": f"no better τ in {counted(recipe.patience, 'evaluation')}",
    }[reason]
    say(f"Stopped after {counted(progress.step, 'step')}: {why}.")
    say(chart("training loss", trainer.log.curve("loss")))
    if trainer.held_out:
        say(chart("simulated τ", trainer.log.curve("tau")))
        say(f"Best simulated τ {progress.best_tau:.3f}, at step {progress.best_step}.")
        if progress.best_tau < WORTHLESS:
            say(
                "Warning: this drafter is no better than none, for hardly any of its drafts would "
                "be accepted. Train longer, on more data, or with another --learning-rate."
            )
    say(f"Wrote {recipe.output}")
