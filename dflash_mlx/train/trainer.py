"""The training loop."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..errors import UserError
from .blocks import Sequence, sample_blocks
from .disk import Log
from .feature_cache import FeatureCache
from .heldout import Evaluation, evaluate
from .learner import Learner, Sums
from .optimizer import Advance, Updater, restore_checkpoint, save_checkpoint, warmup_cosine
from .output import Output
from .recipe import Recipe
from .world import ProgressBar, World

# Steps between two lines for the user.
LINE_EVERY = 10


@dataclass
class Trainer:
    """Trains until the steps are taken, the time is over, or τ gets no better.

    Attributes:
        learner: computes gradients.
        source: what the target says about a sequence.
        sequences: to train on; each has an anchor.
        held_out: to evaluate on; empty for no evaluation.
        recipe: how long and in what portions, with the steps of all, between evaluations and
            between checkpoints. ``batch_size`` is for all processes together, one sequence after
            another in each; a multiple of the processes.
        world: the processes that take part.
        output: gets the parameters to be kept: the best by τ, or without evaluation the last.
        say: called with a line for the user.
        longest_silence: seconds after which a line comes sooner than after ten steps.
    """

    learner: Learner
    source: FeatureCache
    sequences: list[Sequence]
    held_out: list[Sequence]
    recipe: Recipe
    world: World
    output: Output
    say: Callable[[str], None]
    longest_silence: float = 30.0

    def __post_init__(self) -> None:
        recipe = self.recipe
        rate = warmup_cosine(recipe.learning_rate, recipe.steps, recipe.warmup)
        parameters = self.learner.parameters()
        self.updater = Updater(parameters, rate, recipe.clip, recipe.weight_decay)
        self.progress = Advance()
        self.log: Log | None = None
        self._begun = self._reported = 0.0

    def run(self) -> str:
        """Train, from the last checkpoint on if there is one.

        Returns:
            Why it ended: ``"steps"``, ``"time"`` or ``"patience"``.

        Raises:
            UserError: the loss is no longer a number, or the checkpoint is of other weights.
            PeerStopped: the first process has said that.
        """
        restored = self.world.agree(self._restore)
        self._begun = self._reported = time.perf_counter()
        if restored:
            self.say(f"Going on from step {self.progress.step} of {self.recipe.steps}.")
        else:
            self._evaluate()
        reason = "patience" if self._is_out_of_patience() else "steps"
        while reason == "steps" and self.progress.step < self.recipe.steps:
            self._step()
            last = self.progress.step == self.recipe.steps
            due = last or self.progress.step % self.recipe.eval_every == 0
            if due:
                self._evaluate()
            over = "" if last else self._is_over()
            if over and not due and not self.held_out:
                # With them, an evaluation that is not due would change what a resumed run keeps.
                self._keep()
            if last or over or self.progress.step % self.recipe.save_every == 0:
                self._save()
            reason = over or reason
        if self.world.is_first:
            self.output.write_card(self.log)
        return reason

    def _restore(self) -> bool:
        """Go on from the last checkpoint and its log, and return True, if there is one."""
        folder = self.recipe.folder
        restored = restore_checkpoint(folder, self.updater)
        self.progress = restored or self.progress
        # The log of a process that does not speak stays out of the way of the first one's.
        name = "log.jsonl" if self.world.is_first else f"log-{self.world.rank}.jsonl"
        self.log = Log(folder / name, restored and restored.step)
        return restored is not None

    def batch(self, step: int) -> list[tuple[int, Sequence]]:
        """The sequences of a step, with their place in the stream of all that are ever drawn."""
        count, size = len(self.sequences), self.recipe.batch_size
        places = range(step * size, (step + 1) * size)
        orders = {
            epoch: self._random(0, epoch).permutation(count)
            for epoch in {place // count for place in places}
        }
        return [(p, self.sequences[orders[p // count][p % count]]) for p in places]

    def _random(self, purpose: int, place: int) -> np.random.Generator:
        """Draws depend on the step alone, so that they need no state of their own."""
        return np.random.default_rng([self.recipe.seed, purpose, place])

    def _step(self) -> None:
        begun = time.perf_counter()
        sums, config = Sums.zero(), self.learner.config
        batch, anchors = self.batch(self.progress.step), self.recipe.anchors
        for place, sequence in self.world.share(batch):
            random, twice = self._random(1, place), config.draft_passes == 2
            blocks = sample_blocks(sequence, config.block_size, anchors, random, twice)
            self.learner.add(self.updater.parameters, self.source(sequence), blocks, sums)
        sums = self.world.average(sums)
        loss, weight, positions, correct = sums.scalars
        if weight.item() == 0:
            # A drafter of fewer tokens than the target's may know none of these.
            self.progress.step += 1
            self.say(f"step {self.progress.step}: nothing to learn; the weights stay as they are")
            return
        norm = self.updater.update({k: g / weight for k, g in sums.gradients.items()})
        loss = (loss / weight).item()
        self.progress.step += 1
        if not np.isfinite(loss) or not np.isfinite(norm.item()):
            # All processes find it; the first says so.
            self.world.first(lambda: self._fail(loss))
        tokens = sum(len(sequence.tokens) for _, sequence in batch)
        self.log.add(
            step=self.progress.step,
            loss=loss,
            accuracy=(correct / positions).item(),
            gradient_norm=norm.item(),
            learning_rate=self.updater.learning_rate,
            tokens=tokens,
            seconds=time.perf_counter() - begun,
        )
        self._report()
        mx.clear_cache()

    def _fail(self, loss: float) -> None:
        kept = self.recipe.output
        better = f"; --init-from {kept} begins with the best drafter so far"
        raise UserError(
            f"The loss or its gradient is no longer a number (loss {loss} at step "
            f"{self.progress.step}). Train into another --output with a smaller --learning-rate"
            f"{better if (kept / 'config.json').is_file() else ''}."
        )

    def _report(self) -> None:
        """A line after the first step, after every tenth, and where steps are slow."""
        step, now = self.progress.step, time.perf_counter()
        due = step == 1 or step % LINE_EVERY == 0 or step == self.recipe.steps
        if due or now - self._reported > self.longest_silence:
            self._reported = now
            recent = [e for e in self.log.entries if "loss" in e and e["step"] > step - LINE_EVERY]
            seconds = sum(e["seconds"] for e in recent)
            rate = sum(e["tokens"] for e in recent) / seconds
            loss = sum(e["loss"] for e in recent) / len(recent)
            self.say(
                f"step {step}/{self.recipe.steps}: loss {loss:.4f}, "
                f"accuracy {recent[-1]['accuracy']:.3f}, "
                f"learning rate {recent[-1]['learning_rate']:.2e}, {rate:.0f} tokens/s"
            )

    def _evaluate(self) -> None:
        """Evaluate, and write the parameters if they are the best so far."""
        progress = self.progress
        if not self.held_out:
            if progress.step:
                self._keep()
            return
        share, shown = self.world.share(self.held_out), self.world.is_first
        told = {"unit": "text", "delay": 2.0, "leave": False}
        bar = ProgressBar(share, "Evaluating", shown=shown, **told)
        mine = evaluate(self.learner, self.updater.parameters, self.source, bar)
        result = self._together(mine)
        accuracy = [round(a, 4) for a in result.accuracy]
        self.log.add(
            step=progress.step,
            eval_loss=result.mean_loss,
            tau=result.tau,
            position_accuracy=accuracy,
        )
        positions = " ".join(f"{a:.2f}" for a in accuracy)
        self.say(
            f"step {progress.step}: held-out loss {result.mean_loss:.4f}, simulated τ "
            f"{result.tau:.3f}, accuracy by position {positions}"
        )
        if (result.tau, -result.mean_loss) > (progress.best_tau, -progress.best_loss):
            progress.best_tau, progress.best_loss = result.tau, result.mean_loss
            progress.best_step = progress.step
            progress.worse = 0
            self._keep()
        else:
            progress.worse += 1

    def _together(self, mine: Evaluation) -> Evaluation:
        """The evaluation of all processes' sequences."""
        counts = mx.array(mine.counts.astype(np.float32))
        return Evaluation(np.array(self.world.total(counts), np.float64))

    def _keep(self) -> None:
        if self.world.is_first:
            tau = self.progress.best_tau if self.held_out else None
            self.output.write(self.updater.parameters, self.log, self.progress.step, tau)

    def _is_over(self) -> str:
        """Why training stops here, or nothing."""
        limit = self.recipe.time_limit
        minutes = (time.perf_counter() - self._begun) / 60
        if limit is not None and self.world.any(minutes > limit):
            return "time"
        return "patience" if self._is_out_of_patience() else ""

    def _is_out_of_patience(self) -> bool:
        return 0 < self.recipe.patience <= self.progress.worse

    def _save(self) -> None:
        self.world.first(lambda: save_checkpoint(self.recipe.folder, self.updater, self.progress))
