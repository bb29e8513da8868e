"""Rows of data sets: every format, and what is wrong with one in a sentence."""

import json

import pytest

from dflash_mlx.errors import UserError
from dflash_mlx.train.rows import read_rows


def write(path, *rows):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def test_formats(tmp_path):
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = write(
        tmp_path / "x.jsonl",
        {"messages": chat, "kind": "chat"},
        {"messages": chat[:1]},
        "",
        {"prompt": "a", "completion": "b"},
        {"prompt": "a"},
        {"text": "abc"},
    )
    rows = read_rows(path)
    assert [r.answered for r in rows] == [True, False, True, False, True]
    assert rows[0].question == rows[1].question == rows[2].question == rows[3].question == chat[:1]
    assert rows[2].messages == chat and rows[4].text == "abc" and rows[4].messages is None
    assert rows[4].where == "x.jsonl, line 6"


def test_folder(tmp_path):
    write(tmp_path / "train.jsonl", {"text": "abc"})
    assert read_rows(tmp_path)[0].text == "abc"


MISTAKES = {
    "no JSON": ("{", "line 2 is not valid JSON"),
    "no object": ("[]", "not a JSON object"),
    "unknown keys": ({"question": "x"}, "has keys question"),
    "messages of another shape": ({"messages": ["x"]}, "role and content"),
    "tools of another shape": (
        {"messages": [{"role": "user", "content": "a"}], "tools": 3},
        "tools",
    ),
    "no messages": ({"messages": []}, "role and content"),
    "an answer alone": ({"messages": [{"role": "assistant", "content": "x"}]}, "without a quest"),
    "a prompt that is no text": ({"prompt": ["a"], "completion": "b"}, "the prompt is no text"),
    "a text that is no text": ({"text": 3}, "the text is no text"),
    "a message that is no text": ({"messages": [{"role": "user", "content": 5}]}, "content"),
    "a user who says nothing": ({"messages": [{"role": "user", "content": None}]}, "content"),
    "a completion that is no text": ({"prompt": "a", "completion": 3}, "completion"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(tmp_path, mistake):
    row, words = MISTAKES[mistake]
    with pytest.raises(UserError, match=words):
        read_rows(write(tmp_path / "x.jsonl", {"text": "abc"}, row))


def test_no_file_no_rows_and_no_text(tmp_path):
    with pytest.raises(UserError, match="no data file"):
        read_rows(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="no rows"):
        read_rows(write(tmp_path / "x.jsonl", ""))
    (tmp_path / "y.jsonl").write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(UserError, match="UTF-8"):
        read_rows(tmp_path / "y.jsonl")
