"""The loop: order, exact resume, limits, and what it writes."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from support.disk import ERRORS, FULL, files_up_to, listing
from support.tiny import VOCAB
from support.training import random_text, tiny_learner

from dflash_mlx.errors import UserError
from dflash_mlx.train import checkpoint, trainer
from dflash_mlx.train.feature_cache import FeatureCache
from dflash_mlx.train.heldout import Evaluation
from dflash_mlx.train.optimizer import Updater, warmup_cosine
from dflash_mlx.train.trainer import Settings, Trainer
from dflash_mlx.train.world import World

SETTINGS = {"steps": 6, "batch_size": 2, "anchors": 4, "eval_every": 2, "save_every": 2}


class Made:
    """A trainer on five random texts, and what it said and exported."""

    def __init__(self, folder, held_out=2, cache=None, rate=1e-3, vocab_size=VOCAB, **changes):
        folder.mkdir(exist_ok=True)
        learner = tiny_learner(vocab_size=vocab_size)
        texts = [random_text(5, 24 + 3 * i, seed=i) for i in range(5 + held_out)]
        settings = Settings(**(SETTINGS | changes))
        updater = Updater(learner.parameters(), warmup_cosine(rate, settings.steps, 0.04))
        source = FeatureCache(learner, cache, 10**9 if cache else 0)
        self.said, self.exported = [], []
        self.trainer = Trainer(
            learner,
            updater,
            source,
            texts[:5],
            texts[5:],
            settings,
            World(),
            folder,
            self,
            self.said.append,
        )
        self.folder, self.updater = folder, updater

    def write(self, parameters, log, step, tau):
        self.exported.append((step, parameters))
        self.tau = tau

    def write_card(self, log):
        self.card = log.entries[-1]["step"]

    def log(self):
        entries = map(json.loads, (self.folder / "log.jsonl").read_text().splitlines())
        return [{k: v for k, v in entry.items() if k != "seconds"} for entry in entries]


def same(a, b):
    return a.keys() == b.keys() and all(mx.array_equal(a[k], b[k]).item() for k in a)


class Interrupted(Exception):
    """Stands for whatever ends a process."""


def evaluation(tau):
    """One that comes to ``tau``."""
    result = Evaluation(np.zeros(25))
    result.rounds[0], result.totals[2] = 1000, 1000 * tau
    return result


def interrupt(made, step):
    """Let the training break off in the middle of a step."""
    proceed = made.trainer.learner.add

    def add(*args):
        if made.trainer.progress.step == step:
            raise Interrupted
        proceed(*args)

    made.trainer.learner.add = add
    with pytest.raises(Interrupted):
        made.trainer.run()


@pytest.mark.parametrize("prefixes", [False, True])
@pytest.mark.parametrize("at", [0, 1, 2, 3, 5])
def test_a_resumed_training_gives_the_same_numbers(tmp_path, at, prefixes):
    whole = Made(tmp_path / "whole", prefixes=prefixes)
    assert whole.trainer.run() == "steps"
    interrupt(Made(tmp_path / "part", prefixes=prefixes), at)
    again = Made(tmp_path / "part", prefixes=prefixes)
    assert again.trainer.run() == "steps"
    assert same(whole.updater.state(), again.updater.state())
    assert whole.log() == again.log()
    assert whole.trainer.progress.best_tau == again.trainer.progress.best_tau


def test_training_moves_every_parameter(tmp_path):
    made = Made(tmp_path)
    before = dict(made.updater.parameters)
    made.trainer.run()
    assert not any(mx.array_equal(before[k], v) for k, v in made.updater.parameters.items())


def test_cached_features_change_nothing(tmp_path):
    online, cached = Made(tmp_path / "a"), Made(tmp_path / "b", cache=tmp_path / "features")
    online.trainer.run()
    cached.trainer.run()
    assert same(online.updater.state(), cached.updater.state())
    assert len(list((tmp_path / "features").iterdir())) == 7


def test_every_sequence_is_drawn_once_an_epoch(tmp_path):
    trainer = Made(tmp_path).trainer
    places = [pair for step in range(10) for pair in trainer.batch(step)]
    assert [place for place, _ in places] == list(range(20))
    epochs = [[id(s) for _, s in places[i : i + 5]] for i in range(0, 20, 5)]
    assert all(len(set(epoch)) == 5 for epoch in epochs) and epochs[0] != epochs[1]


def test_a_sequence_gets_other_anchors_in_each_epoch(tmp_path):
    made = Made(tmp_path, steps=10)
    texts, add, drawn = made.trainer.sequences, made.trainer.learner.add, []

    def note(parameters, features, blocks, sums):
        drawn.append(tuple(blocks.anchors.tolist()))
        add(parameters, features, blocks, sums)

    made.trainer.learner.add = note
    made.trainer.run()
    order = [id(text) for step in range(10) for _, text in made.trainer.batch(step)]
    for text in texts:
        mine = [anchors for at, anchors in zip(order, drawn, strict=True) if at == id(text)]
        assert len(mine) == len(set(mine)) == 4


def test_the_best_by_tau_is_kept(tmp_path, monkeypatch):
    made, taus = Made(tmp_path), iter([1.0, 1.5, 1.2, 1.5])
    monkeypatch.setattr(
        made.trainer,
        "_together",
        lambda mine: evaluation(next(taus)),
    )
    made.trainer.run()
    assert [step for step, _ in made.exported] == [0, 2] and made.tau == 1.5 and made.card == 6
    assert (made.trainer.progress.best_tau, made.trainer.progress.best_step) == (1.5, 2)


def test_patience(tmp_path, monkeypatch):
    made, taus = Made(tmp_path, patience=1), iter([1.5, 1.6, 1.2])
    monkeypatch.setattr(
        made.trainer,
        "_together",
        lambda mine: evaluation(next(taus)),
    )
    assert made.trainer.run() == "patience"
    assert made.trainer.progress.step == 4
    # It has stopped, and stays so.
    again = Made(tmp_path, patience=1)
    assert again.trainer.run() == "patience" and again.trainer.progress.step == 4


def test_the_time_limit_leaves_a_checkpoint(tmp_path):
    made = Made(tmp_path, time_limit=1e-9)
    assert made.trainer.run() == "time"
    assert [p.name for p in tmp_path.glob("checkpoint-*")] == ["checkpoint-0000001"]
    # The limit is one of each run.
    assert Made(tmp_path, time_limit=1e-9).trainer.run() == "time"
    again = Made(tmp_path, time_limit=600)
    assert (again.trainer.run(), again.trainer.progress.step) == ("steps", 6)
    whole = Made(tmp_path / "whole")
    whole.trainer.run()
    assert same(whole.updater.state(), again.updater.state()) and whole.log() == again.log()
    assert whole.trainer.progress == again.trainer.progress


def test_a_good_moment_to_stop_changes_nothing(tmp_path, monkeypatch):
    """Were τ looked at where the time ends, patience and the drafter kept would be others."""
    taus = {0: 1.0, 1: 9.0, 2: 2.0, 4: 3.0, 6: 4.0}

    def run(name, **changes):
        made = Made(tmp_path / name, patience=1, **changes)
        monkeypatch.setattr(
            made.trainer, "_together", lambda mine: evaluation(taus[made.trainer.progress.step])
        )
        return made, made.trainer.run()

    whole, why = run("whole")
    assert (why, run("part", time_limit=1e-9)[1]) == ("steps", "time")
    part, _ = run("part")
    assert whole.trainer.progress == part.trainer.progress and whole.log() == part.log()


def test_the_time_limit_keeps_the_last_where_nothing_is_held_out(tmp_path):
    made = Made(tmp_path, held_out=0, time_limit=1e-9)
    made.trainer.run()
    step, parameters = made.exported[-1]
    assert step == 1 and same(parameters, made.updater.parameters)


def test_all_steps_within_the_last_second_are_no_time_limit(tmp_path):
    assert Made(tmp_path, steps=1, time_limit=1e-9).trainer.run() == "steps"


def test_without_held_out_sequences_the_last_is_kept(tmp_path):
    made = Made(tmp_path, held_out=0)
    made.trainer.run()
    step, parameters = made.exported[-1]
    assert step == 6 and same(parameters, made.updater.parameters) and made.tau is None


def test_a_loss_that_is_no_number_stops_the_training(tmp_path):
    made = Made(tmp_path / "training")
    name = "layers.0.mlp.up_proj.weight"
    made.updater.parameters[name] = made.updater.parameters[name] * np.nan
    with pytest.raises(UserError, match=r"loss nan at step 1.*another --output") as raised:
        made.trainer.run()
    assert "--init-from" not in str(raised.value)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="nan at step 2") as raised:
        Made(tmp_path / "training", rate=np.nan).trainer.run()
    assert f"--init-from {tmp_path} begins" in str(raised.value)


def test_short_answers_with_prefixes_stay_numbers(tmp_path):
    """With one block a step, all of which may be given."""
    made = Made(tmp_path, steps=20, batch_size=1, anchors=1, prefixes=True)
    for text in made.trainer.sequences:
        text.supervised[:-2] = False
    assert made.trainer.run() == "steps"
    assert all(np.isfinite(e["loss"]) for e in made.log() if "loss" in e)


def test_a_step_with_nothing_to_learn_changes_nothing(tmp_path):
    """The drafter knows none of the tokens."""
    made = Made(tmp_path, steps=1, vocab_size=50)
    for text in made.trainer.sequences:
        text.tokens[:] = 60
    before = made.updater.state()
    assert made.trainer.run() == "steps" and made.trainer.progress.step == 1
    assert same(before, made.updater.state())
    assert any("nothing to learn" in line for line in made.said)


def test_a_checkpoint_of_another_drafter(tmp_path):
    Made(tmp_path).trainer.run()
    made = Made(tmp_path)
    del made.updater.parameters["fc.weight"]
    with pytest.raises(UserError, match="other weights"):
        made.trainer.run()


def test_lines_for_the_user(tmp_path):
    made = Made(tmp_path)
    made.trainer.run()
    assert made.said[0].startswith("step 0: held-out loss") and "simulated τ" in made.said[0]
    assert any(line.startswith("step 6/6: loss") for line in made.said)


@pytest.mark.parametrize(("silence", "steps"), [(1e9, [1, 6]), (0.0, [1, 2, 3, 4, 5, 6])])
def test_slow_steps_have_a_line_each(silence, steps, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "LONGEST_SILENCE", silence)
    made = Made(tmp_path)
    made.trainer.run()
    assert [line.split(":")[0] for line in made.said if "learning rate" in line] == [
        f"step {step}/6" for step in steps
    ]


@pytest.mark.parametrize("error", ERRORS)
def test_the_checkpoint_before_stays(error, tmp_path, monkeypatch):
    made = Made(tmp_path, steps=2)
    made.trainer.run()
    before = listing(tmp_path)

    def write(path, arrays):
        Path(path).write_bytes(b"cut")
        raise error

    with monkeypatch.context() as patch, pytest.raises(UserError, match=FULL):
        patch.setattr(mx, "save_safetensors", write)
        checkpoint.save(tmp_path, made.updater, checkpoint.Progress(step=4))
    assert listing(tmp_path) == before


def test_a_training_goes_on_once_there_is_room(tmp_path):
    whole = Made(tmp_path / "whole")
    whole.trainer.run()
    made = Made(tmp_path / "part")
    save = made.trainer._save

    def save_on_a_full_disk():
        with files_up_to(10_000 if made.trainer.progress.step == 4 else 10**9):
            save()

    made.trainer._save = save_on_a_full_disk
    with pytest.raises(UserError, match=f"checkpoint-0000004 {FULL}"):
        made.trainer.run()
    assert [p.name for p in made.folder.glob("checkpoint-*")] == ["checkpoint-0000002"]
    again = Made(tmp_path / "part")
    assert again.trainer.run() == "steps"
    assert same(whole.updater.state(), again.updater.state()) and whole.log() == again.log()
