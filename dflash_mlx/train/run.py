"""A training from its options to the drafter's folder."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import dequantize_model, maybe_set_recommended_wired_limit

from ..convert.cached import convert_cached
from ..convert.writer import DTYPES
from ..drafter.model import Drafter
from ..errors import UserError, counted
from ..files import check_free
from ..loading.loader import load, load_drafter
from ..loading.pair import Pair
from ..loading.pairing import check_pair
from ..target.target import Target
from . import checkpoint
from .blocks import Sequence
from .chart import chart
from .design import design, new_drafter
from .disk import writing
from .examples import Example
from .feature_cache import FeatureCache
from .forward import check_trainable
from .learner import Learner
from .losses import Objective
from .optimizer import Updater, warmup_cosine
from .options import EPOCHS, Options
from .output import Output
from .prepare import Preparation, read_data
from .trainer import Settings, Trainer
from .world import World

Say = Callable[[str], None]
Data = tuple[list[Example], list[Example]]


def train(options: Options, say: Say = print) -> Path:
    """Train a drafter and write it.

    Args:
        options: what to do.
        say: called with each line for the user, in the first process alone.

    Returns:
        The drafter's folder, ``options.output``.

    Raises:
        UserError: an option does not fit the target or the data, or training cannot go on.
        PeerStopped: that, or anything else, has ended another process of this training.
    """
    world = World()
    with world.together():
        _train(options, world, say if world.is_first else _silent)
    return options.output


def _train(options: Options, world: World, say: Say) -> None:
    # First of all: it should not wait for a target to be loaded, or downloaded.
    data = world.agree(lambda: _data(options, world))
    pair, drafter, preparation = world.agree(lambda: _begin(options, data, world, say))
    # Only now: a mistake in the options should leave nothing behind.
    world.first(lambda: _record(options))
    sequences, held_out = preparation.sequences()
    untapped = pair.target
    # Without taps, the feature is what comes out of the final norm.
    taps = drafter.config.target_layer_ids or (untapped.num_layers,)
    target = Target(pair.model, taps, untapped.family)
    try:
        maybe_set_recommended_wired_limit()
        _describe(drafter, target, sequences, held_out, say)
        trainer = _trainer(options, drafter, target, sequences, held_out, world, say)
        reason = trainer.run()
    finally:
        target.release()
    _conclude(trainer, reason, options, say)


def _data(options: Options, world: World) -> Data:
    """The data, where all that can be told without a target is in order."""
    _check_output(options)
    if options.batch_size % world.size:
        raise UserError(
            f"A batch of {counted(options.batch_size, 'sequence')} cannot be shared by "
            f"{world.size} processes; give a multiple."
        )
    return read_data(options)


def _begin(
    options: Options, data: Data, world: World, say: Say
) -> tuple[Pair, Drafter, Preparation]:
    pair, tokenizer = load(
        options.model,
        False,
        adapter_path=options.adapter_path,
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
        tokenizer_config={"trust_remote_code": True} if options.trust_remote_code else None,
    )
    drafter = _drafter(options, pair.target, tokenizer, pair.context_length)
    return pair, drafter, Preparation(pair.model, tokenizer, options, data, world, say)


def _record(options: Options) -> None:
    folder = options.folder
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    options.record(folder / "options.json", checkpoint.find(folder) is not None)


def _check_output(options: Options) -> None:
    folder = options.folder
    if options.resume and not folder.is_dir():
        raise UserError(
            f"{options.output} holds no training to go on with; leave --resume out to begin one."
        )
    if options.resume:
        return
    if folder.exists():
        raise UserError(
            f"{options.output} already exists and holds a training; add --resume to go on with it, "
            "or choose another folder."
        )
    check_free(options.output)


def _drafter(
    options: Options, target: Target, tokenizer: TokenizerWrapper, context_length: int | None
) -> Drafter:
    if options.init_from is None:
        config = options.passes(design(target, tokenizer, context_length, options.shape))
        check_pair(config, target)
        return new_drafter(config, target, options.seed)
    drafter = load_drafter(convert_cached(options.init_from))
    check_pair(drafter.config, target)
    check_trainable(drafter)
    drafter.config = options.passes(drafter.config)
    return dequantize_model(drafter)


def _trainer(
    options: Options,
    drafter: Drafter,
    target: Target,
    sequences: list[Sequence],
    held_out: list[Sequence],
    world: World,
    say: Say,
) -> Trainer:
    config = drafter.config
    objective = options.objective(config.block_size)
    dtype = forward_dtype(target.dtype)
    learner = Learner(drafter, target, objective, options.chunk_blocks, dtype)
    epochs = EPOCHS if options.epochs is None else options.epochs
    steps = options.steps or max(1, round(epochs * len(sequences) / options.batch_size))
    every = max(10, round(steps / 20))
    settings = Settings(
        steps=steps,
        batch_size=options.batch_size,
        anchors=options.anchors,
        seed=options.seed,
        eval_every=options.eval_every or every,
        save_every=options.save_every or every,
        prefixes=config.draft_passes == 2,
        patience=options.patience,
        time_limit=None if options.time_limit is None else 60 * options.time_limit,
    )
    schedule = warmup_cosine(options.learning_rate, steps, options.warmup)
    updater = Updater(learner.parameters(), schedule, options.clip, options.weight_decay)
    folder = options.folder
    cache = folder / "features" if options.cache_features else None
    limit = int(options.cache_features * 1e9)
    # Nobody goes on before all have seen how much is there.
    source = world.agree(lambda: FeatureCache(learner, cache, limit, world.rank, world.size))
    stored = target.dtype if options.dtype is None else DTYPES[options.dtype]
    facts = _facts(options, objective, settings, sequences)
    output = Output(options.output, config, stored, facts)
    return Trainer(
        learner, updater, source, sequences, held_out, settings, world, folder, output, say
    )


def forward_dtype(target: mx.Dtype) -> mx.Dtype:
    """The dtype of the drafter's forward in training, for a target of dtype ``target``."""
    if mx.default_device() == mx.cpu:
        # It is fast in float32 alone.
        return mx.float32
    # Sums of hidden states are too large for float16, and gradients too small.
    return mx.bfloat16 if target == mx.float16 else target


def _facts(
    options: Options, objective: Objective, settings: Settings, sequences: list[Sequence]
) -> dict[str, object]:
    """What the drafter's card says of its training."""
    weighting = {
        "decay": f"decay with gamma {objective.gamma:g}",
        "dpace": f"D-PACE with alpha {objective.alpha:g}",
        "uniform": "uniform",
    }[objective.weighting]
    loss = {"ce": "cross entropy", "kl": f"KL at temperature {objective.temperature:g}"}
    target = Path(options.model).name if options.model else "SmolLM2-135M-Instruct"
    adapters = (
        f" with the adapters {Path(options.adapter_path).name}" if options.adapter_path else ""
    )
    return {
        "target": target + adapters,
        "begun_from": Path(options.init_from).name if options.init_from else "random weights",
        "objective": f"{loss[objective.loss]}, weights: {weighting}",
        "sequences": len(sequences),
        "tokens_of_answers": int(sum(s.supervised.sum() for s in sequences)),
        "planned_steps": settings.steps,
        "sequences_a_step": settings.batch_size,
        "anchors_a_sequence": settings.anchors,
        "learning_rate": options.learning_rate,
        "seed": options.seed,
    }


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
    second = ""
    if config.selector_rank is not None:
        second = (
            f", convolutions over {config.conv_kernel_size} rows in groups of "
            f"{config.conv_group_size}, selector of rank {config.selector_rank} among "
            f"{config.selector_top_k}"
        )
    say(
        f"Drafter: {weights:,} weights, {counted(config.num_hidden_layers, 'layer')}, block "
        f"size {config.block_size}, taps {list(config.target_layer_ids)} of {target.num_layers}, "
        f"mask {mask}, intermediate size {config.intermediate_size}, window "
        f"{config.sliding_window or 'none'}, "
        f"{'causal' if any(config.causal) else 'bidirectional'} blocks, "
        f"{'two draft passes' if config.draft_passes == 2 else 'one draft pass'}{second}"
    )
    for name, part in (("Training", sequences), ("Held out", held_out)):
        tokens = sum(len(s.tokens) for s in part)
        answers = sum(int(s.supervised.sum()) for s in part)
        say(
            f"{name}: {counted(len(part), 'sequence')}, {counted(tokens, 'token')}, {answers} of "
            "them answers"
        )


def _conclude(trainer: Trainer, reason: str, options: Options, say: Say) -> None:
    progress = trainer.progress
    why = {
        "steps": "all steps are taken",
        "time": "the time limit is reached; --resume goes on",
        "patience": f"no better τ in {counted(trainer.settings.patience, 'evaluation')}",
    }[reason]
    say(f"Stopped after {counted(progress.step, 'step')}: {why}.")
    say(chart("training loss", trainer.log.curve("loss")))
    if trainer.held_out:
        say(chart("simulated τ", trainer.log.curve("tau")))
        say(f"Best simulated τ {progress.best_tau:.3f}, at step {progress.best_step}.")
    say(f"Wrote {options.output}")


def _silent(line: str) -> None:
    """What processes other than the first say."""
