"""What a training keeps: whole or not at all, also on a full disk, and a log that goes on."""

import json

import pytest
from support.disk import ERRORS, FULL, files_up_to, listing

from dflash_mlx.errors import UserError
from dflash_mlx.train.disk import Log, read_lines, replacing, write_lines


@pytest.mark.parametrize("error", ERRORS)
def test_what_was_there_stays(error, tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(UserError, match=FULL) as raised, replacing(path) as partial:
        partial.write_text("ne")
        raise error
    assert f"{path} cannot be written (the disk is full)." in str(raised.value)
    assert listing(tmp_path) == {"a.json": b"old"}
    with replacing(path) as partial:
        partial.write_text("new")
    assert listing(tmp_path) == {"a.json": b"new"}


def test_a_file_is_written_anew_in_one_step_and_only_if_it_is_another(tmp_path, monkeypatch):
    """What took the target hours is not lost if the process ends here; others may read it."""
    path = tmp_path / "a"
    write_lines(path, [{"x": 1}])

    def die(self, data):
        self.open("wb").close()
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.write_bytes", die)
    write_lines(path, read_lines(path, []))
    with pytest.raises(KeyboardInterrupt):
        write_lines(path, [{"x": 2}])
    assert read_lines(path, ["x"]) == [{"x": 1}]


def test_a_log_drops_what_will_come_again(tmp_path):
    path = tmp_path / "log.jsonl"
    log = Log(path)
    for step in range(1, 5):
        log.add(step=step, loss=1 / step)
    path.write_text(path.read_text() + '{"step": 5, "lo')
    again = Log(path, 2)
    again.add(step=3, tau=1.5)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert entries == again.entries
    assert again.curve("loss") == [(1, 1.0), (2, 0.5)] and again.curve("tau") == [(3, 1.5)]
    assert Log(path).entries == []


@pytest.mark.parametrize("damage", [b'{"a', b"[1]", b"{}", b"\xff"])
def test_a_damaged_log_is_refused(damage, tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b'{"step": 1}\n' + damage + b"\n")
    with pytest.raises(UserError, match="damaged in line 2"):
        Log(tmp_path / "log.jsonl", 3)


def test_a_log_goes_on_once_there_is_room(tmp_path):
    path = tmp_path / "log.jsonl"
    log = Log(path)
    with files_up_to(100), pytest.raises(UserError, match=f"log.jsonl {FULL}"):
        for step in range(1, 100):
            log.add(step=step, loss=1.0)
    assert path.stat().st_size == 100
    again = Log(path, 2)
    again.add(step=3, loss=2.0)
    assert [e["step"] for e in Log(path, 3).entries] == [1, 2, 3]
