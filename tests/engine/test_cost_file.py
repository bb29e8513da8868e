"""The file of a pair's costs: written when there is news, and shared with other processes."""

import copy
import threading

import pytest

from dflash_mlx.engine import cost_file
from dflash_mlx.engine.cost_file import CostFile
from dflash_mlx.engine.costs import CostTable


def table():
    rounds = {1: [10.0, 14.0], 2: [12.0, 20.0], 5: [18.0, 26.0]}
    return copy.deepcopy(CostTable([500, 4500], {"greedy": rounds}))


def taught(costs, size, seconds):
    for _ in range(20):
        costs.learn(size, 500, seconds)
    return costs


@pytest.fixture
def files(monkeypatch, tmp_path):
    """The same file as two processes hold it, the first of which has written a table."""
    monkeypatch.setattr(cost_file, "cache_dir", lambda: tmp_path)
    ours, theirs = CostFile({"a": 1}), CostFile({"a": 1})
    assert ours.read() is None
    ours.write(table())
    assert theirs.read() == table()
    return ours, theirs


def test_only_news_are_written(files, monkeypatch):
    ours, _ = files
    before = ours.path.stat()
    costs = table()
    # Nothing is read where nobody else has written.
    monkeypatch.setattr(cost_file, "read_json_object", None)
    costs.rounds["greedy"][2][0] *= 1.04
    assert ours.update(costs) is costs and ours.path.stat() == before
    # What moves slowly is written in the end.
    costs.rounds["greedy"][2][0] *= 1.04
    assert ours.update(costs) is costs
    monkeypatch.undo()
    assert CostFile.read(ours) == costs
    assert not list(ours.path.parent.glob(".*"))


def test_what_another_process_has_written_is_taken_over(files):
    ours, theirs = files
    other = taught(table(), 2, 15.0)
    assert theirs.update(other) is other
    assert ours.update(taught(table(), 5, 30.0)) == other
    # It is ours from then on.
    more = taught(copy.deepcopy(other), 5, 30.0)
    assert ours.update(more) is more
    assert theirs.update(other) == more == ours.read()


def test_a_file_that_was_removed_is_written_again(files):
    ours, theirs = files
    ours.path.unlink()
    assert theirs.update(table()) == table() == ours.read()


def test_who_writes_waits_for_another_and_takes_over_what_it_wrote(files):
    """Both have seen the same file, and end their texts within the same millisecond."""
    ours, theirs = files
    other, found = taught(table(), 2, 15.0), []
    writer = threading.Thread(target=lambda: found.append(ours.update(taught(table(), 5, 30.0))))
    with theirs._alone():
        writer.start()
        writer.join(0.2)
        assert writer.is_alive() and not found
        theirs._write(other)
    writer.join(10)
    assert found == [other] and ours.read() == other
