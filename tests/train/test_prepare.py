"""From options and files to the sequences of a training."""

import json
from pathlib import Path

import pytest
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx.errors import UserError
from dflash_mlx.train.answers import Writing
from dflash_mlx.train.blocks import Sequence
from dflash_mlx.train.options import Options
from dflash_mlx.train.prepare import Preparation, check_data, read_data
from dflash_mlx.train.world import World

CHAT = "{% for m in messages %}<{{ m.content }}>{% endfor %}"


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama", vocab_size=260)


def prepare(
    model, folder: Path, files: dict[str, list[dict]], template: str | None = None, **options
) -> tuple[list[Sequence], list[Sequence], list[str]]:
    """Sequences to train on, those held out, and what the user was told."""
    data = folder / "data"
    data.mkdir(exist_ok=True)
    for name, rows in files.items():
        (data / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    said: list[str] = []
    tokenizer = byte_tokenizer(eos=range(0, 256, 16) if template else ())
    tokenizer._tokenizer.chat_template = template
    tokenizer.has_chat_template = template is not None
    given = {"data": data if files else None, "writing": Writing(max_tokens=6, batch=4)} | options
    made = Options(output=folder / "out", **given)
    rows = read_data(made)
    preparation = Preparation(model, tokenizer, made, rows, folder, World(), said.append)
    return *preparation.sequences(), said


def texts(sequences: list[Sequence]) -> list[str]:
    return [bytes(t for t in s.tokens.tolist() if t < 256).decode("latin-1") for s in sequences]


ROWS = [{"text": f"text {i:02}"} for i in range(40)]


def test_a_twentieth_is_held_out_and_the_split_is_the_seeds(model, tmp_path):
    train, held_out, _ = prepare(model, tmp_path, {"train.jsonl": ROWS})
    assert (len(train), len(held_out)) == (38, 2)
    assert sorted(texts(train + held_out)) == [row["text"] for row in ROWS]
    again = prepare(model, tmp_path, {"train.jsonl": ROWS})
    other = prepare(model, tmp_path, {"train.jsonl": ROWS}, seed=1)
    assert texts(again[1]) == texts(held_out) != texts(other[1])


def test_held_out_counts(model, tmp_path):
    assert len(prepare(model, tmp_path, {"train.jsonl": ROWS}, held_out=0)[1]) == 0
    assert len(prepare(model, tmp_path, {"train.jsonl": ROWS}, held_out=7)[1]) == 7
    with pytest.raises(UserError, match="none is left to train on"):
        prepare(model, tmp_path, {"train.jsonl": ROWS}, held_out=40)


@pytest.mark.parametrize("count, expected", [(None, 32), (5, 5), (0, 0)])
def test_a_file_to_evaluate_on(model, tmp_path, count, expected):
    files = {"train.jsonl": ROWS, "valid.jsonl": [{"text": f"other {i:02}"} for i in range(40)]}
    train, held_out, _ = prepare(model, tmp_path, files, held_out=count)
    assert len(train) == 40
    assert texts(held_out) == [f"other {i:02}" for i in range(expected)]


def test_prompts_are_answered_and_answers_kept(model, tmp_path):
    rows = [{"prompt": "ask"}, {"prompt": "said", "completion": "so"}]
    train, _, said = prepare(model, tmp_path, {"train.jsonl": rows}, held_out=0)
    asked, said_so = sorted(train, key=lambda s: s.tokens.tolist())
    assert texts([said_so]) == ["saidso"] and said_so.answers() == [(4, 7)]
    assert asked.answers()[0][0] == 3 and len(asked.tokens) > 3
    assert any("--regenerate" in line for line in said)


def test_all_are_answered_anew(model, tmp_path):
    rows = [{"prompt": "said", "completion": "so"}]
    [sequence], _, said = prepare(
        model, tmp_path, {"train.jsonl": rows}, held_out=0, regenerate=True
    )
    assert not texts([sequence])[0].startswith("saidso") and not said


SAID = {"prompt": "said", "completion": "so"}
MISTAKES = {
    "line 2 is plain text": ([SAID, {"text": "a"}], {"regenerate": True}),
    "line 1 has no answer": ([{"prompt": "ask"}], {"regenerate": False}),
    "--temp, --top-p": ([SAID, SAID], {"writing": Writing(temp=1.0)}),
    "on plain text": ([{"text": "a"}] * 2, {"template_options": {"enable_thinking": False}}),
    "none is left to train on": ([SAID, SAID], {"held_out": 2}),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_what_the_data_do_not_allow(words, tmp_path):
    rows, options = MISTAKES[words]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = Options(output=tmp_path / "out", data=path, **options)
    with pytest.raises(UserError, match=words):
        check_data(made, read_data(made))
    fine = Options(output=tmp_path / "out", data=path, seed=1)
    check_data(fine, read_data(fine))


def test_too_few_to_hold_out_is_said(model, tmp_path):
    files = {"train.jsonl": ROWS, "valid.jsonl": ROWS[:3]}
    assert prepare(model, tmp_path, files, held_out=3)[2] == []
    _, held_out, said = prepare(model, tmp_path, files, held_out=5)
    assert len(held_out) == 3 and said == ["valid.jsonl has only 3 sequences to hold out, not 5."]


def test_what_is_too_long_or_too_short_is_said(model, tmp_path):
    rows = [*ROWS[:3], {"text": ""}, {"prompt": "x" * 20}, {"prompt": "y"}]
    train, _, said = prepare(model, tmp_path, {"train.jsonl": rows}, held_out=0, max_seq_length=10)
    assert len(train) == 4 and max(len(s.tokens) for s in train) <= 10
    assert any(line.startswith("Left out 1 sequence with") for line in said)
    assert any(line.startswith("Left out 1 prompt of") for line in said)
    with pytest.raises(UserError, match="max-seq-length"):
        prepare(model, tmp_path, {"train.jsonl": rows[4:5]}, max_seq_length=10)


def test_invented_prompts_join_the_data(model, tmp_path):
    train, held_out, _ = prepare(
        model,
        tmp_path,
        {"train.jsonl": [{"prompt": "given"}]},
        CHAT,
        self_prompts=3,
        held_out=1,
        writing=Writing(max_tokens=6, batch=16, temp=1.0),
    )
    found = [s for s in texts(train + held_out) if s.startswith("<given>")]
    assert len(train) + len(held_out) >= 2 and len(found) <= 1
    assert len((tmp_path / "prompts.jsonl").read_text().splitlines()) == 3
