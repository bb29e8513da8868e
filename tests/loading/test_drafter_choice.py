"""Loading without naming a drafter: the known one is taken, and what happens otherwise is said."""

import json
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError
from support.folders import save_drafter, save_target
from support.hub import DRAFTER, PIN, TARGET, Hub, make_hub

import dflash_mlx
from dflash_mlx.errors import UserError
from dflash_mlx.loading.known_drafter import choose_drafter


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    return make_hub(tmp_path, monkeypatch)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may not connect to anything."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_the_known_drafter_is_loaded_and_named(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dflash_mlx"):
        model, tokenizer = dflash_mlx.load(TARGET)
    assert (DRAFTER, PIN) in hub.asked
    assert f"Drafter for {TARGET}: {DRAFTER} at {PIN[:8]}." in caplog.text
    *_, last = dflash_mlx.stream_generate(model, tokenizer, "hello", 9, block_size=8)
    assert last.block_size == 8


def test_a_named_drafter_is_taken_instead(hub: Hub, tmp_path: Path) -> None:
    save_drafter(tmp_path / "other", block_size=4)
    model, _ = dflash_mlx.load(TARGET, tmp_path / "other")
    assert model.drafter.block_size == 4
    assert [repo for repo, _ in hub.asked] == [TARGET]


def test_no_drafter_is_fetched_when_none_is_wanted(hub: Hub) -> None:
    model, _ = dflash_mlx.load(TARGET, draft_model=False)
    assert model.drafter is None
    assert [repo for repo, _ in hub.asked] == [TARGET]


def test_unknown_target_decodes_plainly_and_says_so(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.folders["someone/Qwen3-8B-Base"] = hub.folders[TARGET]
    with caplog.at_level(logging.INFO, "dflash_mlx"):
        model, _ = dflash_mlx.load("someone/Qwen3-8B-Base")
    assert model.drafter is None
    assert [repo for repo, _ in hub.asked] == ["someone/Qwen3-8B-Base"]
    assert "no drafter is known for it" in caplog.text and "--draft-model" in caplog.text


def test_known_drafters_that_do_not_run(hub: Hub) -> None:
    choice = choose_drafter("mlx-community/Kimi-K3-4bit")
    assert choice.folder is None and hub.asked == []
    assert "multi-head latent attention" in choice.message


def gated() -> Exception:
    response = type("Response", (), {"headers": {}, "request": None})()
    return GatedRepoError("gated", response=response)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(gated, "is gated"), (lambda: LocalEntryNotFoundError("x"), "cannot be reached")],
)
def test_drafter_that_cannot_be_fetched(
    hub: Hub, failure: Callable[[], Exception], reason: str
) -> None:
    hub.failure = failure()
    with pytest.raises(UserError, match=reason) as error:
        dflash_mlx.load(TARGET)
    message = str(error.value)
    assert DRAFTER in message and "draft_model=False" in message and "--no-draft" in message
    model, _ = dflash_mlx.load(TARGET, draft_model=False)
    assert model.drafter is None


def local_copy(folder: Path, **sizes: int) -> Path:
    folder.mkdir()
    known = {"hidden_size": 4096, "num_hidden_layers": 36, "vocab_size": 151936}
    (folder / "config.json").write_text(json.dumps(known | sizes))
    return folder


@pytest.mark.usefixtures("offline")
def test_local_copy_whose_drafter_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    choice = choose_drafter(local_copy(tmp_path / "copy"))
    assert choice.folder is None
    assert "looks like Qwen/Qwen3-8B" in choice.message and DRAFTER in choice.message


def test_local_copy_whose_drafter_is_here(hub: Hub, tmp_path: Path) -> None:
    choice = choose_drafter(local_copy(tmp_path / "copy"))
    assert choice.folder == hub.folders[DRAFTER]
    assert "looks like Qwen/Qwen3-8B" in choice.message


@pytest.mark.usefixtures("offline")
def test_local_copy_of_one_of_several(tmp_path: Path) -> None:
    sizes = {"hidden_size": 5120, "num_hidden_layers": 64, "vocab_size": 248320}
    choice = choose_drafter(local_copy(tmp_path / "copy", **sizes))
    assert choice.folder is None and "no drafter is known" in choice.message


@pytest.mark.usefixtures("offline")
def test_local_target_needs_no_network(tmp_path: Path) -> None:
    save_target(tmp_path / "Qwen3-8B-4bit")
    model, _ = dflash_mlx.load(tmp_path / "Qwen3-8B-4bit")
    assert model.drafter is None


@pytest.mark.usefixtures("offline")
def test_a_path_that_is_not_there_is_no_hub_id() -> None:
    with pytest.raises(UserError, match="no folder"):
        choose_drafter("./Qwen3-8B-4bit")


def test_hub_that_answers_with_an_error(hub: Hub) -> None:
    response = type("Response", (), {"status_code": 503, "headers": {}, "request": None})()
    hub.failure = HfHubHTTPError("503 Server Error\nRequest ID", response=response)
    with pytest.raises(UserError, match=r"refused .*\(503 Server Error\)") as error:
        dflash_mlx.load(TARGET)
    assert len(str(error.value).splitlines()) == 1
