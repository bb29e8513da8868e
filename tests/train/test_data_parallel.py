"""Two processes train the drafter that one does, and end together."""

import json
import os
import resource
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import mlx.core as mx
import pytest
from support.training import train_command

from dflash_mlx.train.world import World

BIN = Path(sys.executable).parent
LAUNCH = BIN / "mlx.launch"


def free_port() -> int:
    """A port whose successor is free too, as far as one can know."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


@pytest.fixture
def train(tmp_path: Path) -> list[str | Path]:
    """A command that lacks the output folder's name."""
    command = train_command(tmp_path, [{"prompt": f"p{i}"} for i in range(6)])
    more = "--max-tokens 20 --steps 4 --batch-size 2 --held-out 2 --eval-every 2 --output"
    return [BIN / "dflash-mlx", *command[:-2], *more.split()]


def test_two_processes_train_as_one(train: list[str | Path], tmp_path: Path) -> None:
    launch = [LAUNCH, "-n", "2", "--backend", "ring", "--starting-port", str(free_port())]
    cached = [*launch, *train[:-1], "--cache-features", "1", "--output", tmp_path / "two"]
    for command in ([*train, tmp_path / "one"], cached):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("Stopped after 4 steps") == 1

    one, two = (tmp_path / name for name in ("one", "two"))
    weights = [mx.load(str(folder / "model.safetensors")) for folder in (one, two)]
    for name, value in weights[0].items():
        assert mx.allclose(value, weights[1][name], rtol=1e-4, atol=1e-6), name
    logs = [(f / "training" / "log.jsonl").read_text().splitlines() for f in (one, two)]
    for a, b in zip(*[map(json.loads, log) for log in logs], strict=True):
        assert a.keys() == b.keys() and abs(a.get("loss", 0) - b.get("loss", 0)) < 1e-4
        assert a.get("tau") == b.get("tau")
    # One file a sequence, whichever process comes to it in which epoch.
    assert len(list((two / "training" / "features").iterdir())) == 6


def both(command: list[str | Path], room: int) -> list[tuple[int, str]]:
    """Exit codes and standard errors of two processes; the first one's files have little room."""
    port = free_port()
    hosts = Path(command[-1]).with_name("hosts.json")
    hosts.write_text(json.dumps([[f"127.0.0.1:{port + rank}"] for rank in range(2)]))
    started = [
        subprocess.Popen(
            command,
            env=os.environ | {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)},
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size)),
        )
        for rank, size in enumerate((room, ROOM))
    ]
    said = [process.communicate(timeout=120)[1] for process in started]
    return [(process.returncode, text) for process, text in zip(started, said, strict=True)]


ROOM = 10**9
# What is wrong, what the first process says of it, and the room that its files have.
FAULTS = {
    "both find it": (["--batch-size", "3"], "A batch of 3 sequences", ROOM),
    "both find it in the data": (["--max-seq-length", "2"], "All prompts have 2 tokens", ROOM),
    "both find it in the loss": (["--learning-rate", "1e38"], "no longer a number", ROOM),
    "the first finds it": ([], "answers-train.jsonl is damaged", ROOM),
    "the first fails in the midst": ([], "cannot be written", 20_000),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_process_says_what_is_wrong(fault, train, tmp_path):
    more, words, room = FAULTS[fault]
    output = tmp_path / "out"
    if fault == "the first finds it":
        (output / "training").mkdir(parents=True)
        (output / "training" / "answers-train.jsonl").write_text("[1]\n")
        more = ["--resume"]
    (code, said), (other_code, other) = both([*train[:-1], *more, "--output", output], room)
    assert code == 2 and said.startswith("error: ") and words in said
    assert other_code == 1 and "Another process of this training has stopped" in other
    assert "error: " not in other and "Traceback" not in said + other


def test_what_another_process_did_not_cause_is_raised_as_it_is():
    with pytest.raises(RuntimeError, match="out of memory"), World().together():
        raise RuntimeError("out of memory")
