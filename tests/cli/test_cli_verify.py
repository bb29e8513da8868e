"""The ``verify`` command: equal texts, a lossy pair, near-ties, interruption and mistakes."""

import mlx.core as mx
import pytest
from mlx_lm.utils import save_model
from support import commands
from support.folders import VOCAB, save_target
from support.pairs import accept_everything

import dflash_mlx
from dflash_mlx.cli import verify as command
from dflash_mlx.engine import choose
from dflash_mlx.engine.accept import accept_equal
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.measure.arms import our_arms
from dflash_mlx.measure.lossless import emit
from dflash_mlx.measure.prompts import prompt_tokens, read_prompts

QUICK = ("--kinds", "code", "-m", "12")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    return commands.run(capsys, "verify", *arguments)


def plain_text(pair: list[str], **options: object) -> list[int]:
    """Plain greedy tokens of the first prompt."""
    model, tokenizer = dflash_mlx.load(pair[1])
    arm = our_arms(model, tokenizer, Sampling(**options), [])[0]
    return emit(arm, prompt_tokens(tokenizer, read_prompts()[0]), 12).tokens


def test_equal_texts(pair, capsys):
    code, out, err = run(capsys, *pair, "--limit", "1", "-m", "12", "--block-sizes", "2,8,16")
    assert (code, err) == (0, "")
    assert "All 25 texts are equal" in out and "Left out block size 16" in out
    for line in ("code-1, greedy, block 2", "prose-1, temperature 0.8, seed 1, coupled, block 8"):
        (found,) = (x for x in out.splitlines() if x.startswith(line))
        assert found.endswith("equal")
    assert "code-1, greedy, mlx-lm" in out


def test_lossy_pair_is_found(pair, capsys, monkeypatch):
    monkeypatch.setattr(choose, "accept_equal", accept_everything)
    code, out, _ = run(capsys, *pair, *QUICK, "--block-sizes", "8")
    assert code == 1
    assert "0 part at a near-tie, and 2 differ without that explanation" in out
    (line,) = (x for x in out.splitlines() if x.startswith("code-1, greedy, block 8: token"))
    index = int(line.split("token ")[1].split()[0])
    assert f"plain's is {bytes([plain_text(pair)[index]]).decode('latin-1')!r}" in line
    assert f"different at token {index}" in out
    assert "best two logits there are" in out and "64 roundings of float32" in out
    assert "8 rows in one pass" in out and "please report it" in out
    assert "is no fault of drafting" not in out


@pytest.fixture
def tied(pair, tmp_path) -> tuple[list[str], int, int]:
    """A pair whose target cannot tell two tokens apart; plain decoding takes the first of them."""
    token = plain_text(pair)[4]
    twin = next(t for t in range(token + 1, 256) if t not in plain_text(pair))
    folder = tmp_path / "tied"
    model = save_target(folder, tie_word_embeddings=False)
    model.update(save_target(tmp_path / "target").parameters())
    table = model.model.embed_tokens.weight
    model.lm_head.weight = mx.where((mx.arange(VOCAB) == twin)[:, None], table[token], table)
    config = (folder / "config.json").read_text()
    save_model(folder, model)
    (folder / "config.json").write_text(config)
    return ["--model", str(folder), *pair[2:]], token, twin


def test_near_tie_is_said_and_explained(tied, capsys, monkeypatch):
    models, token, twin = tied

    def other_twin(drafts: mx.array, targets: mx.array) -> tuple[mx.array, mx.array]:
        if drafts.shape[1]:
            targets = mx.where(targets == token, twin, targets)
        return accept_equal(drafts, targets)

    assert run(capsys, *models, *QUICK)[0] == 0
    monkeypatch.setattr(choose, "accept_equal", other_twin)
    code, out, _ = run(capsys, *models, *QUICK, "--block-sizes", "4")
    (line,) = (x for x in out.splitlines() if x.startswith("code-1, greedy, block 4: token"))
    assert code == 0 and "near-tie at token" in out and f"({twin}), and plain's" in line
    assert "are 0 apart" in out and "0 behind the best" in out and "This is a near-tie." in out
    assert "is no fault of drafting" in out and "and 0 differ without that explanation" in out
    assert run(capsys, *models, *QUICK, "--block-sizes", "4", "--strict")[0] == 1


def test_interrupt_prints_the_verdicts_so_far(pair, capsys, monkeypatch):
    def check_texts(*arguments):
        checks = real(*arguments)
        yield next(checks)
        raise KeyboardInterrupt

    real = command.check_texts
    monkeypatch.setattr(command, "check_texts", check_texts)
    code, out, _ = run(capsys, *pair, *QUICK)
    assert code == 130 and "The text is equal" in out and "was not verified" in out


def test_interrupt_before_the_first_verdict(pair, capsys, monkeypatch):
    def check_texts(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "check_texts", check_texts)
    assert run(capsys, *pair, *QUICK) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temp", "0"], "--temp"),
        (["--seed", "-1"], "seed"),
        (["--block-sizes", "big"], "--block-sizes"),
        (["--block-sizes", "9"], "up to 8"),
        (["-m", "0"], "max"),
    ],
)
def test_mistake_is_one_sentence_and_exit_code_2(arguments, words, pair, capsys):
    code, out, err = run(capsys, *pair, *arguments)
    assert (code, out) == (2, "") and words in err and "Traceback" not in err


def test_a_drafter_is_needed(pair, capsys):
    code, _, err = run(capsys, *pair[:2])
    assert code == 2 and "--draft-model" in err
