"""The command line takes the known drafter of a target, and says so on stderr."""

import argparse
from pathlib import Path

import pytest
from support.folders import save_target
from support.hub import DRAFTER, PIN, TARGET, Hub, make_hub

from dflash_mlx.cli.arguments import add_model_options, load_pair
from dflash_mlx.cli.main import main


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    return make_hub(tmp_path, monkeypatch)


def generate(*options: str) -> int:
    return main(["generate", "-p", "hello", "-m", "5", *options])


def test_announced(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--model", TARGET) == 0
    out, err = capsys.readouterr()
    assert f"Drafter for {TARGET}: {DRAFTER} at {PIN[:8]}." in err
    assert "plain decoding" not in out


def test_quiet(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--model", TARGET, "--quiet") == 0
    assert "Drafter" not in capsys.readouterr().err
    assert DRAFTER in [repo for repo, _ in hub.asked]


def test_no_draft_fetches_none(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--model", TARGET, "--no-draft") == 0
    assert [repo for repo, _ in hub.asked] == [TARGET]
    assert "plain decoding" in capsys.readouterr().out


def test_target_without_a_known_drafter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_target(tmp_path / "target")
    assert generate("--model", str(tmp_path / "target")) == 0
    out, err = capsys.readouterr()
    assert "decodes plainly, because no drafter is known for it" in err
    assert "plain decoding" in out


def test_what_is_chosen_is_put_into_the_options(hub: Hub) -> None:
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    args = parser.parse_args(["--model", TARGET])
    load_pair(args)
    assert (args.draft_model, args.draft_revision) == (DRAFTER, PIN)


def test_revision_of_a_drafter_that_is_not_named(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate("--model", TARGET, "--draft-revision", "main") == 2
    assert "without a draft model" in capsys.readouterr().err
    assert hub.asked == []
