"""Two processes under ``mlx.launch`` train the drafter that one does."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
from support.folders import save_target

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


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    save_target(tmp_path / "target")
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(6)))
    train = [BIN / "dflash-mlx", "train", "--model", tmp_path / "target", "--data", data]
    train += ["--max-tokens", "20", "--steps", "4", "--batch-size", "2", "--held-out", "2"]
    train += ["--eval-every", "2", "--output"]
    launch = [LAUNCH, "-n", "2", "--backend", "ring", "--starting-port", str(free_port())]
    for command in ([*train, tmp_path / "one"], [*launch, *train, tmp_path / "two"]):
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
