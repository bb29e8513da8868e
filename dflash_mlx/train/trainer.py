"""The training loop."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
from tqdm import tqdm

from ..errors import UserError
from . import checkpoint
from .blocks import Sequence, sample_blocks
from .disk import Log
from .feature_cache import FeatureCache
from .heldout import Evaluation, evaluate
from .learner import Learner, Sums
from .optimizer import Updater
from .output import Output
from .world import World

# Steps between two lines for the user, if they take no more than so many seconds.
LINE_EVERY = 10
LONGEST_SILENCE = 30.0


@dataclass(frozen=True)
class Settings:
    """How long and in what portions to train.

    Attributes:
        steps: updates in all; the learning rate's schedule is made for them.
        batch_size: sequences a step, in all processes together, one after another in each; a
            multiple of the processes.
        anchors: blocks a sequence at most.
        seed: of the order of the sequences and of the anchors.
        eval_every: steps between evaluations.
        save_every: steps between checkpoints.
        prefixes: give every second block a true prefix, for a second draft pass.
        patience: evaluations without a better τ before training stops; 0 never stops.
        time_limit: seconds of this run after which a checkpoint is written and training stops, or
            None.
    """

    steps: int
    batch_size: int = 8
    anchors: int = 512
    seed: int = 0
    eval_every: int = 200
    save_every: int = 200
    prefixes: bool = False
    patience: int = 0
    time_limit: float | None = None


class Trainer:
    """Trains until the steps are taken, the time is over, or τ gets no better.

    Args:
        learner: computes gradients.
        updater: holds the parameters.
        source: the target's features.
        sequences: to train on; each has an anchor.
        held_out: to evaluate on; empty for no evaluation.
        settings: how long and in what portions.
        world: the processes that take part.
        folder: of checkpoints and log.
        output: gets the parameters to be kept: the best by τ, or without evaluation the last.
        say: called with a line for the user.
    """

    def __init__(
        self,
        learner: Learner,
        updater: Updater,
        source: FeatureCache,
        sequences: list[Sequence],
        held_out: list[Sequence],
        settings: Settings,
        world: World,
        folder: Path,
        output: Output,
        say: Callable[[str], None],
    ):
        self.learner, self.updater, self.source = learner, updater, source
        self.sequences, self.held_out = sequences, held_out
        self.settings, self.world, self.folder = settings, world, folder
        self._output, self._say = output, say
        self.progress = checkpoint.Progress()
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
        resume = self.world.agree(self._restore)
        self._begun = self._reported = time.perf_counter()
        if not resume:
            self._evaluate()
        reason = "patience" if self._is_out_of_patience() else "steps"
        while reason == "steps" and self.progress.step < self.settings.steps:
            self._step()
            last = self.progress.step == self.settings.steps
            due = last or self.progress.step % self.settings.eval_every == 0
            if due:
                self._evaluate()
            over = "" if last else self._is_over()
            if over and not due and not self.held_out:
                # With them, an evaluation that is not due would change what a resumed run keeps.
                self._keep()
            if last or over or self.progress.step % self.settings.save_every == 0:
                self._save()
            reason = over or reason
        if self.world.is_first:
            self._output.write_card(self.log)
        return reason

    def _restore(self) -> bool:
        """Go on from the last checkpoint and its log, and return True, if there is one."""
        resume = checkpoint.find(self.folder) is not None
        if resume:
            self.progress = checkpoint.restore(self.folder, self.updater)
        # The log of a process that does not speak stays out of the way of the first one's.
        name = "log.jsonl" if self.world.is_first else f"log-{self.world.rank}.jsonl"
        self.log = Log(self.folder / name, self.progress.step if resume else None)
        return resume

    def batch(self, step: int) -> list[tuple[int, Sequence]]:
        """The sequences of a step, with their place in the stream of all that are ever drawn."""
        count, size = len(self.sequences), self.settings.batch_size
        places = range(step * size, (step + 1) * size)
        orders = {
            epoch: np.random.default_rng([self.settings.seed, 0, epoch]).permutation(count)
            for epoch in {place // count for place in places}
        }
        return [(p, self.sequences[orders[p // count][p % count]]) for p in places]

    def _step(self) -> None:
        begun = time.perf_counter()
        sums = Sums.zero()
        batch = self.batch(self.progress.step)
        for place, sequence in self.world.share(batch):
            random = np.random.default_rng([self.settings.seed, 1, place])
            blocks = sample_blocks(
                sequence,
                self.learner.config.block_size,
                self.settings.anchors,
                random,
                self.settings.prefixes,
            )
            self.learner.add(self.updater.parameters, self.source(sequence), blocks, sums)
        sums = self.world.average(sums)
        loss, weight, positions, correct = sums.scalars
        if weight.item() == 0:
            # A drafter of fewer tokens than the target's may know none of these.
            self.progress.step += 1
            self._say(f"step {self.progress.step}: nothing to learn; the weights stay as they are")
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
        kept = self.folder.parent
        better = f"; --init-from {kept} begins with the best drafter so far"
        raise UserError(
            f"The loss or its gradient is no longer a number (loss {loss} at step "
            f"{self.progress.step}). Train into another --output with a smaller --learning-rate"
            f"{better if (kept / 'config.json').is_file() else ''}."
        )

    def _report(self) -> None:
        """A line after the first step, after every tenth, and where steps are slow."""
        step, now = self.progress.step, time.perf_counter()
        due = step == 1 or step % LINE_EVERY == 0 or step == self.settings.steps
        if due or now - self._reported > LONGEST_SILENCE:
            self._reported = now
            recent = [e for e in self.log.entries if "loss" in e and e["step"] > step - LINE_EVERY]
            seconds = sum(e["seconds"] for e in recent)
            rate = sum(e["tokens"] for e in recent) / seconds
            loss = sum(e["loss"] for e in recent) / len(recent)
            self._say(
                f"step {step}/{self.settings.steps}: loss {loss:.4f}, "
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
        share = self.world.share(self.held_out)
        quiet = None if self.world.is_first else True
        bar = tqdm(share, "Evaluating", unit="text", delay=2.0, leave=False, disable=quiet)
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
        self._say(
            f"step {progress.step}: held-out loss {result.mean_loss:.4f}, simulated τ "
            f"{result.tau:.3f}, accuracy by position {positions}"
        )
        if result.tau > progress.best_tau:
            progress.best_tau, progress.best_step = result.tau, progress.step
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
            self._output.write(self.updater.parameters, self.log, self.progress.step, tau)

    def _is_over(self) -> str:
        """Why training stops here, or nothing."""
        limit = self.settings.time_limit
        seconds = time.perf_counter() - self._begun
        if limit is not None and self.world.any(seconds > limit):
            return "time"
        return "patience" if self._is_out_of_patience() else ""

    def _is_out_of_patience(self) -> bool:
        return 0 < self.settings.patience <= self.progress.worse

    def _save(self) -> None:
        self.world.first(lambda: checkpoint.save(self.folder, self.updater, self.progress))
