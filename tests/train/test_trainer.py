"""The loop: order, exact resume, limits, and what it writes."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from support.disk import FULL, files_up_to
from support.training import random_text, tiny_learner

from dflash_mlx.errors import UserError
from dflash_mlx.train.feature_cache import FeatureCache
from dflash_mlx.train.heldout import Evaluation
from dflash_mlx.train.recipe import Recipe
from dflash_mlx.train.trainer import Trainer
from dflash_mlx.train.world import World

OPTIONS = {"steps": 6, "batch_size": 2, "anchors": 4, "eval_every": 2, "save_every": 2}
TWO_PASSES = {"draft_passes": 2, "draft_prefix": 3}
# Minutes.
AT_ONCE, LONG = 1e-9, 10.0


class Interrupted(Exception):
    """Stands for whatever ends a process."""


class Made:
    """A trainer on five random texts, and what it said and exported.

    Args:
        output: the drafter's folder.
        held_out: how many further texts to evaluate on.
        cache: folder for features.
        taus: what the evaluations come to by step, and their losses, if not what they do.
        drafter: changes of the drafter.
        options: of the recipe.
    """

    def __init__(self, output, held_out=2, cache=None, taus=None, drafter=None, **options):
        learner = tiny_learner(**(drafter or {}))
        texts = [random_text(5, 24 + 3 * i, seed=i) for i in range(5 + held_out)]
        recipe = Recipe(output=Path(output), **(OPTIONS | options))
        recipe.folder.mkdir(exist_ok=True, parents=True)
        source = FeatureCache(learner, cache, 10**9 if cache else 0)
        self.said, self.exported, self.folder = [], [], recipe.folder
        self.trainer = Trainer(
            learner, source, texts[:5], texts[5:], recipe, World(), self, self.said.append
        )
        self.progress, self.updater = self.trainer.progress, self.trainer.updater
        if taus:
            self.trainer._together = lambda mine: evaluation(*taus[self.trainer.progress.step])

    def run(self):
        reason = self.trainer.run()
        self.progress = self.trainer.progress
        return reason

    def interrupt(self, step):
        """Let the training break off in the middle of a step."""
        proceed = self.trainer.learner.add

        def add(*args):
            if self.trainer.progress.step == step:
                raise Interrupted
            proceed(*args)

        self.trainer.learner.add = add
        with pytest.raises(Interrupted):
            self.trainer.run()

    def write(self, parameters, log, step, tau):
        self.exported.append((step, tau, parameters))

    def write_card(self, log):
        self.card = log.entries[-1]["step"]

    def log(self):
        entries = map(json.loads, (self.folder / "log.jsonl").read_text().splitlines())
        return [{k: v for k, v in entry.items() if k != "seconds"} for entry in entries]

    def checkpoints(self):
        return [path.name for path in self.folder.glob("checkpoint-*")]


def evaluation(tau, loss=0.0):
    """One that comes to ``tau``."""
    result = Evaluation(np.zeros(25))
    result.totals[:2] = loss, 1.0
    result.rounds[0], result.totals[2] = 1000, 1000 * tau
    return result


def same(a, b):
    return a.keys() == b.keys() and all(mx.array_equal(a[k], b[k]).item() for k in a)


def assert_alike(whole, again):
    """Two finished trainings came to the same numbers on the same way."""
    assert same(whole.updater.state(), again.updater.state())
    assert whole.log() == again.log() and whole.progress == again.progress


@pytest.mark.parametrize("drafter", [{}, TWO_PASSES])
@pytest.mark.parametrize("at", [0, 1, 2, 3, 5])
def test_a_resumed_training_gives_the_same_numbers(tmp_path, at, drafter):
    whole = Made(tmp_path / "whole", drafter=drafter)
    before = dict(whole.updater.parameters)
    assert whole.run() == "steps"
    # Training moves every parameter.
    assert not any(mx.array_equal(before[k], v) for k, v in whole.updater.parameters.items())
    Made(tmp_path / "part", drafter=drafter).interrupt(at)
    again = Made(tmp_path / "part", drafter=drafter)
    assert again.run() == "steps"
    assert_alike(whole, again)


def test_cached_features_change_nothing(tmp_path):
    online, cached = Made(tmp_path / "a"), Made(tmp_path / "b", cache=tmp_path / "features")
    assert online.run() == cached.run() == "steps"
    assert_alike(online, cached)
    assert len(list((tmp_path / "features").iterdir())) == 7


def test_every_sequence_is_drawn_once_an_epoch_with_other_anchors(tmp_path):
    made, drawn = Made(tmp_path, steps=10), []
    add = made.trainer.learner.add

    def note(parameters, encoding, blocks, sums):
        drawn.append(tuple(blocks.anchors.tolist()))
        add(parameters, encoding, blocks, sums)

    made.trainer.learner.add = note
    made.run()
    batches = [pair for step in range(10) for pair in made.trainer.batch(step)]
    assert [place for place, _ in batches] == list(range(20))
    order = [id(sequence) for _, sequence in batches]
    epochs = [order[i : i + 5] for i in range(0, 20, 5)]
    assert all(len(set(epoch)) == 5 for epoch in epochs) and epochs[0] != epochs[1]
    for text in set(order):
        mine = [anchors for at, anchors in zip(order, drawn, strict=True) if at == text]
        assert len(mine) == len(set(mine)) == 4


def test_the_best_by_tau_is_kept(tmp_path):
    made = Made(tmp_path, taus={0: [1.0], 2: [1.5], 4: [1.2], 6: [1.5]})
    made.run()
    assert [kept[:2] for kept in made.exported] == [(0, 1.0), (2, 1.5)] and made.card == 6
    assert (made.progress.best_tau, made.progress.best_step) == (1.5, 2)


def test_of_equal_tau_the_smaller_loss_is_kept(tmp_path):
    """A drafter that has learned something, though τ does not show it, is not thrown away."""
    taus = {0: (1.0, 5.0), 2: (1.0, 4.0), 4: (1.0, 4.5), 6: (1.0, 3.0)}
    made = Made(tmp_path, taus=taus, patience=2)
    assert made.run() == "steps"
    assert [step for step, *_ in made.exported] == [0, 2, 6]
    progress = made.progress
    assert (progress.best_tau, progress.best_loss, progress.best_step) == (1.0, 3.0, 6)


def test_a_resumed_training_says_from_where(tmp_path):
    Made(tmp_path).interrupt(3)
    again = Made(tmp_path)
    again.run()
    assert again.said[0] == "Going on from step 2 of 6."
    assert not any("Going on" in line for line in Made(tmp_path / "new").said)


def test_patience(tmp_path):
    made = Made(tmp_path, patience=1, taus={0: [1.5], 2: [1.6], 4: [1.2]})
    assert made.run() == "patience" and made.progress.step == 4
    # It has stopped, and stays so.
    again = Made(tmp_path, patience=1)
    assert again.run() == "patience" and again.progress.step == 4


def test_the_time_limit_leaves_a_checkpoint(tmp_path):
    made = Made(tmp_path / "part", time_limit=AT_ONCE)
    assert made.run() == "time" and made.checkpoints() == ["checkpoint-0000001"]
    # The limit is one of each run.
    assert Made(tmp_path / "part", time_limit=AT_ONCE).run() == "time"
    whole, again = Made(tmp_path / "whole"), Made(tmp_path / "part", time_limit=LONG)
    assert whole.run() == again.run() == "steps"
    assert_alike(whole, again)
    assert Made(tmp_path / "short", steps=1, time_limit=AT_ONCE).run() == "steps"


def test_a_good_moment_to_stop_changes_nothing(tmp_path):
    """Were τ looked at where the time ends, patience and the drafter kept would be others."""
    asked = {"patience": 1, "taus": {0: [1.0], 1: [9.0], 2: [2.0], 4: [3.0], 6: [4.0]}}
    whole = Made(tmp_path / "whole", **asked)
    assert whole.run() == "steps"
    assert Made(tmp_path / "part", time_limit=AT_ONCE, **asked).run() == "time"
    part = Made(tmp_path / "part", **asked)
    part.run()
    assert_alike(whole, part)


@pytest.mark.parametrize("limit, steps", [(AT_ONCE, 1), (None, 6)])
def test_without_held_out_sequences_the_last_is_kept(tmp_path, limit, steps):
    made = Made(tmp_path, held_out=0, time_limit=limit)
    made.run()
    step, tau, parameters = made.exported[-1]
    assert step == steps and same(parameters, made.updater.parameters) and tau is None


def test_a_loss_that_is_no_number_stops_the_training(tmp_path):
    made = Made(tmp_path)
    name = "layers.0.mlp.up_proj.weight"
    made.updater.parameters[name] = made.updater.parameters[name] * np.nan
    with pytest.raises(UserError, match=r"loss nan at step 1.*another --output") as raised:
        made.run()
    assert "--init-from" not in str(raised.value)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=f"nan at step 2.*--init-from {tmp_path} begins"):
        Made(tmp_path, learning_rate=1e38).run()


def test_short_answers_with_prefixes_stay_numbers(tmp_path):
    """With one block a step, all of which may be given."""
    made = Made(tmp_path, steps=20, batch_size=1, anchors=1, held_out=0, drafter=TWO_PASSES)
    for text in made.trainer.sequences:
        text.supervised[:-2] = False
    assert made.run() == "steps"
    assert all(np.isfinite(e["loss"]) for e in made.log())


def test_a_step_with_nothing_to_learn_changes_nothing(tmp_path):
    """The drafter knows none of the tokens."""
    made = Made(tmp_path, steps=1, drafter={"vocab_size": 50})
    for text in made.trainer.sequences:
        text.tokens[:] = 60
    before = made.updater.state()
    assert made.run() == "steps" and made.progress.step == 1
    assert same(before, made.updater.state())
    assert any("nothing to learn" in line for line in made.said)


@pytest.mark.parametrize("silence, steps", [(1e9, [1, 6]), (0.0, [1, 2, 3, 4, 5, 6])])
def test_lines_for_the_user(silence, steps, tmp_path):
    """Slow steps have a line each."""
    made = Made(tmp_path)
    made.trainer.longest_silence = silence
    made.run()
    assert made.said[0].startswith("step 0: held-out loss") and "simulated τ" in made.said[0]
    lines = [line for line in made.said if "learning rate" in line]
    assert [line.split(": loss")[0] for line in lines] == [f"step {step}/6" for step in steps]


def test_a_training_goes_on_once_there_is_room(tmp_path):
    whole, made = Made(tmp_path / "whole"), Made(tmp_path / "part")
    whole.run()
    save = made.trainer._save

    def save_on_a_full_disk():
        with files_up_to(10_000 if made.trainer.progress.step == 4 else 10**9):
            save()

    made.trainer._save = save_on_a_full_disk
    with pytest.raises(UserError, match=f"checkpoint-0000004 {FULL}"):
        made.run()
    assert made.checkpoints() == ["checkpoint-0000002"]
    again = Made(tmp_path / "part")
    assert again.run() == "steps"
    assert_alike(whole, again)
