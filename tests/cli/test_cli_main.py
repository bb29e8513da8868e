"""The ``dflash-mlx`` command itself: what it imports, and what Ctrl-C does."""

import signal
import subprocess
import sys
from importlib.metadata import version

import pytest

import dflash_mlx
from dflash_mlx.cli.main import COMMANDS, build_parser, main


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)


def test_help_does_not_load_mlx():
    code = "import sys; from dflash_mlx.cli.main import main\ntry: main(['--help'])\nfinally: "
    done = python("-c", code + "print([m for m in sys.modules if m.startswith('mlx')])")
    assert done.returncode == 0 and done.stdout.endswith("[]\n")
    assert all(name in done.stdout for name in COMMANDS)


def test_the_package_waits_for_what_is_slow_to_load():
    code = "import sys, dflash_mlx; print({'mlx', 'mlx_lm', 'transformers'} & set(sys.modules))"
    assert python("-c", code).stdout == "set()\n"


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out == f"{dflash_mlx.__version__}\n"
    assert version("dflash-mlx") == dflash_mlx.__version__


MISTAKE = ["models", "nonesuch"]


@pytest.mark.parametrize("arguments", [["--debug", *MISTAKE], [*MISTAKE, "--debug"]])
def test_debug_shows_where_a_sentence_comes_from(arguments, capsys):
    assert main(MISTAKE) == main(arguments) == 2
    plain, _, rest = capsys.readouterr().err.partition("\n")
    traceback, _, again = rest.rstrip().rpartition("\n")
    assert plain == again and "nonesuch" in plain
    assert traceback.startswith("Traceback") and "models.py" in traceback


def test_a_fault_of_ours_is_told_from_a_mistake(capsys, monkeypatch):
    def broken():
        raise KeyError("targets")

    monkeypatch.setattr("dflash_mlx.cli.models.known_pairs", broken)
    assert main(["models"]) == 70
    sentence = capsys.readouterr().err
    assert sentence.count("\n") == 1 and "KeyError: 'targets'" in sentence and "--debug" in sentence
    assert main(["models", "--debug"]) == 70
    assert "in broken" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_its_options_when_chosen(command, capsys):
    with pytest.raises(SystemExit) as stop:
        build_parser(command).parse_args([command, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: dflash-mlx {command}") and out.count("--") > 1


def test_a_reader_that_has_seen_enough_gets_no_error():
    code = "from dflash_mlx.cli.main import main; raise SystemExit(main(['models', '--json']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait(60) == 141


@pytest.mark.parametrize(
    ("arguments", "usage", "found", "meant"),
    [
        (["generat"], "dflash-mlx COMMAND", "generat", "generate"),
        (["frobnicate"], "dflash-mlx COMMAND", "frobnicate", None),
        (["generate", "--block-sise", "4"], "dflash-mlx generate", "--block-sise", "--block-size"),
        (["generate", "--top_p=0.5"], "dflash-mlx generate", "--top_p", "--top-p"),
        (["models", "--jason"], "dflash-mlx models", "--jason", "--json"),
        (["models", "--qqqq"], "dflash-mlx models", "--qqqq", None),
        (["convert", "-d"], "dflash-mlx convert", "--export z-lab", None),
        (["convert", "--q-mode", "mxfp4"], "dflash-mlx convert", "affine", None),
        (["convert", "--trust-remote-code"], "dflash-mlx convert", "is executed", None),
        # A flag that is unknown is told before one that is missing.
        (["convert", "--mlx-pth", "x"], "dflash-mlx convert", "--mlx-pth", "--mlx-path"),
    ],
)
def test_what_is_unknown_is_named_with_the_nearest_known(arguments, usage, found, meant, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    first, error, *rest = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and not rest
    assert first.startswith(f"usage: {usage} ") and len(first) < 80
    assert found in error and ("did you mean" in error) == (meant is not None)
    assert meant is None or error.endswith(f"did you mean {meant}?")


def test_names_are_imported_when_asked_for():
    code = "import dflash_mlx.generation.stream, dflash_mlx; print(dflash_mlx.generate.__module__)"
    assert python("-c", code).stdout == "dflash_mlx.generation.stream\n"
    assert all(hasattr(dflash_mlx, name) for name in dflash_mlx.__all__)
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = dflash_mlx.nonesuch


@pytest.mark.parametrize("seen", ["mlx.core", "numpy", "transformers.utils", "huggingface_hub"])
def test_interrupt_during_imports_is_one_word(seen):
    command = [sys.executable, "-X", "importtime", "-m", "dflash_mlx", "generate", "-p", "x"]
    with subprocess.Popen(
        [*command, "--model", "./none"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        for line in run.stderr:
            if line.rstrip().endswith(seen):
                run.send_signal(signal.SIGINT)
                break
        rest = [line for line in run.stderr if not line.startswith("import time:")]
        assert run.wait(timeout=60) == 130
    assert rest == ["interrupted\n"]
