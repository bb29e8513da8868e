"""From a Hub id to text: a user's commands and the real client, against a Hub on this machine."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.folders import save_drafter, save_target
from support.hub import DRAFTER, PIN, TARGET
from support.hub_server import MAIN, HubServer
from support.plain import plain_greedy
from support.tokenizer import byte_tokenizer

from dflash_mlx.cli.main import main

PROMPT = ["--prompt", "hello", "--ignore-chat-template", "--block-size", "4", "-m", "20"]


@dataclass
class Machine:
    """A home with an empty cache, that knows the Hub's address."""

    home: Path
    address: str

    def run(self, *arguments: str, code: int = 0, **variables: str) -> tuple[str, str]:
        """A command's stdout and stderr."""
        environment = os.environ | {
            "HF_ENDPOINT": self.address,
            "HF_HOME": str(self.home / "hub"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": "hf_nobody",
            "XDG_CACHE_HOME": str(self.home / "cache"),
        }
        done = subprocess.run(
            [sys.executable, "-m", "dflash_mlx", *arguments],
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A target, a drafter for it in PyTorch's layout, and the target's own text."""
    folder = tmp_path_factory.mktemp("made")
    model = save_target(folder / "target")
    # Larger than what a client reads to find the end of a header.
    save_drafter(folder / "mlx", target_layer_ids=(0, 1), intermediate_size=1024)
    export = ["convert", "--export", "z-lab", "--mlx-path", str(folder / "mlx")]
    assert main([*export, "--hf-path", str(folder / "checkpoint")]) == 0
    tokenizer = byte_tokenizer()
    tokens = plain_greedy(model, tokenizer.encode("hello"), 20)
    (folder / "text").write_text(tokenizer.decode(tokens))
    return folder


@pytest.fixture
def hub(made):
    with HubServer() as server:
        server.publish(TARGET, made / "target")
        # What the known pair pins is not the latest: that one is another drafter altogether.
        server.publish(DRAFTER, made / "checkpoint", commit=PIN)
        server.publish(DRAFTER, made / "target", commit=MAIN)
        yield server


@pytest.fixture
def machine(hub, tmp_path) -> Machine:
    return Machine(tmp_path, hub.address)


def test_from_an_id_to_text_and_again_offline(hub, machine, made):
    said, told = machine.run("generate", "--model", TARGET, *PROMPT)
    assert (made / "text").read_text() in said
    assert f"{DRAFTER} at {PIN[:8]}" in told and "block 4" in told + said
    begun = len(hub.requests)
    offline = Machine(machine.home, "http://127.0.0.1:9")
    again, told = offline.run("generate", "--model", TARGET, *PROMPT)
    assert (made / "text").read_text() in again and "Retry" not in told
    assert len(hub.requests) == begun


def test_a_cut_download_goes_on(hub, machine, made):
    hub.cuts.add("model.safetensors")
    said, _ = machine.run("generate", "--model", TARGET, "--no-draft", *PROMPT[:-4], "-m", "20")
    assert (made / "text").read_text() in said
    assert not hub.cuts


def test_inspect_reads_headers_alone(hub, machine, made):
    said, _ = machine.run("inspect", DRAFTER, "--revision", PIN)
    assert "z-lab" in said and PIN in said
    size = (made / "checkpoint" / "model.safetensors").stat().st_size
    assert all(r.range or r.method == "HEAD" for r in hub.requests if "safetensors" in r.path)
    assert 0 < hub.sent("model.safetensors") < size


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--draft-model", "nobody/nothing"], "nobody/nothing"),
        (["--draft-model", DRAFTER, "--draft-revision", "v9"], "v9"),
        (["--draft-model", "some/gated"], "gated"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence(arguments, named, hub, machine, made):
    hub.publish("some/gated", made / "checkpoint")
    hub.gated.add("some/gated")
    _, told = machine.run("generate", "--model", TARGET, *arguments, *PROMPT, code=2)
    assert told.count("error:") == 1 and named in told


def test_offline_is_told_at_once(machine):
    begun = time.monotonic()
    offline = Machine(machine.home, "http://127.0.0.1:9")
    _, told = offline.run("generate", "--model", TARGET, *PROMPT, code=2)
    assert "Retry" not in told and told.count("\n") == 1 and "network" in told
    # Without a bound it was 23 s of retries; starting Python takes some of these.
    assert time.monotonic() - begun < 20


def test_upload(hub, machine, made):
    said, _ = machine.run(
        *(
            "convert",
            "--hf-path",
            str(made / "checkpoint"),
            "--mlx-path",
            str(machine.home / "out"),
        ),
        *("--upload-repo", "me/my-drafter"),
    )
    uploaded = hub.repos["me/my-drafter"][MAIN]
    made_here = {p.name: p.read_bytes() for p in (machine.home / "out").iterdir()}
    assert uploaded == made_here and "me/my-drafter" in said
