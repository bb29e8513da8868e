"""Answers and prompts by the target: what they are, and that an interrupted file goes on."""

import json

import pytest
from support.disk import FULL, files_up_to
from support.plain import plain_greedy
from support.tiny import tiny_model
from support.tokenizer import EOS, byte_tokenizer

from dflash_mlx.errors import UserError
from dflash_mlx.train.answers import Writing, write_answers
from dflash_mlx.train.invent import invent_prompts, opening
from dflash_mlx.train.lines import read_lines, write_lines

VOCAB = 260
QUESTIONS = [[*text.encode()] for text in ("ab", "bcd", "c", "defg", "e")]


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama", vocab_size=VOCAB)


def write(model, path, questions=QUESTIONS, seen=None, **writing):
    settings = Writing(**({"max_tokens": 9, "batch": 2} | writing))
    progress = seen.append if seen is not None else lambda pair: None
    tokenizer = byte_tokenizer()
    return write_answers(
        model, tokenizer, questions, settings, EOS, path, lambda *pair: progress(pair)
    )


def test_answers_are_the_targets_greedy_text(model, tmp_path):
    for question, sequence in zip(QUESTIONS, write(model, tmp_path / "a"), strict=True):
        answer = plain_greedy(model, question, 9)
        if EOS in answer:
            answer = answer[: answer.index(EOS) + 1]
        assert sequence.tokens.tolist() == question + answer
        assert sequence.answers() == [(len(question), len(sequence.tokens))]


def test_an_end_token_is_learned(model, tmp_path):
    first = plain_greedy(model, QUESTIONS[0], 9)
    tokenizer = byte_tokenizer([first[3]])
    writing = Writing(max_tokens=9)
    path = tmp_path / "a"
    [sequence] = write_answers(model, tokenizer, QUESTIONS[:1], writing, EOS, path, lambda *_: None)
    assert sequence.tokens.tolist() == [*QUESTIONS[0], *first[: first.index(first[3])], EOS]


@pytest.mark.parametrize("there", [2, 3])
@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_an_interrupted_file_goes_on(model, tmp_path, temp, there):
    whole = write(model, tmp_path / "whole", temp=temp)
    lines = (tmp_path / "whole").read_text().splitlines(keepends=True)
    # A batch of two answers is there, perhaps one of the next, and one that was cut short.
    (tmp_path / "part").write_text("".join(lines[: 1 + there]) + lines[1 + there][:9])
    seen = []
    again = write(model, tmp_path / "part", seen=seen, temp=temp)
    assert seen == [(2, 5), (4, 5), (5, 5)]
    assert [s.tokens.tolist() for s in again] == [s.tokens.tolist() for s in whole]
    assert (tmp_path / "part").read_text() == (tmp_path / "whole").read_text()


def test_answers_go_on_once_the_disk_has_room(model, tmp_path):
    write(model, tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    # The head and a batch of two have room, and a part of the second batch.
    room = sum(map(len, whole.splitlines(keepends=True)[:3])) + 9
    with files_up_to(room), pytest.raises(UserError, match=f"part {FULL}"):
        write(model, tmp_path / "part")
    seen = []
    write(model, tmp_path / "part", seen=seen)
    assert seen[0] == (2, 5) and (tmp_path / "part").read_bytes() == whole


def test_sampling_depends_on_the_seed(model, tmp_path):
    texts = [
        [s.tokens.tolist() for s in write(model, tmp_path / str(i), temp=1.0, seed=seed)]
        for i, seed in enumerate((0, 0, 1))
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_file_of_other_questions_is_refused(model, tmp_path):
    write(model, tmp_path / "a")
    with pytest.raises(UserError, match="other questions or by other settings"):
        write(model, tmp_path / "a", QUESTIONS[:2])
    with pytest.raises(UserError, match="other questions or by other settings"):
        write(model, tmp_path / "a", max_tokens=8)


def test_a_damaged_file_is_refused(model, tmp_path):
    write(model, tmp_path / "a")
    (tmp_path / "a").write_text((tmp_path / "a").read_text().replace("[", "{", 1))
    with pytest.raises(UserError, match="damaged in line 2"):
        write(model, tmp_path / "a")
    (tmp_path / "a").write_bytes(b"\xff\n")
    with pytest.raises(UserError, match="damaged in line 1"):
        write(model, tmp_path / "a")


def test_a_whole_file_is_not_written_again(model, tmp_path):
    """Other processes read it at the same time."""
    write(model, tmp_path / "a")
    before = (tmp_path / "a").stat().st_mtime_ns
    write_lines(tmp_path / "a", read_lines(tmp_path / "a", []))
    assert (tmp_path / "a").stat().st_mtime_ns == before


def test_a_file_is_written_anew_in_one_step(tmp_path, monkeypatch):
    """What took the target hours is not lost if the process ends here."""
    write_lines(tmp_path / "a", [{"x": 1}])

    def die(self, data):
        self.open("wb").close()
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.write_bytes", die)
    with pytest.raises(KeyboardInterrupt):
        write_lines(tmp_path / "a", [{"x": 2}])
    assert read_lines(tmp_path / "a", ["x"]) == [{"x": 1}]


def test_an_empty_file_is_begun(model, tmp_path):
    (tmp_path / "a").touch()
    assert len(write(model, tmp_path / "a")) == len(QUESTIONS)


def inventor():
    """A tokenizer whose template opens the user's turn, and many tokens that end it."""
    tokenizer = byte_tokenizer(eos=range(0, 256, 16))
    tokenizer._tokenizer.chat_template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    tokenizer.has_chat_template = True
    return tokenizer


def prompts(path):
    return [json.loads(line)["prompt"] for line in path.read_text().splitlines()]


def test_prompts_are_invented_and_a_file_goes_on(model, tmp_path):
    path, tokenizer = tmp_path / "prompts", inventor()
    assert opening(tokenizer) == [*b"<"]
    invent_prompts(model, tokenizer, opening(tokenizer), 9, 0, 4, path, lambda *_: None)
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    found = prompts(path)
    assert len(set(found)) == len(found) == 9
    assert all(sum(map(str.isalpha, text)) >= 8 for text in found)
    assert json.loads(lines[-1])["batch"] > json.loads(lines[0])["batch"]
    for there in range(9):
        path.write_text("".join(lines[:there]) + lines[there][:9])
        invent_prompts(model, tokenizer, opening(tokenizer), 9, 0, 4, path, lambda *_: None)
        assert path.read_text() == whole
    path.write_text("{}\n")
    with pytest.raises(UserError, match="damaged in line 1"):
        invent_prompts(model, tokenizer, opening(tokenizer), 9, 0, 4, path, lambda *_: None)


def test_a_target_without_template_cannot_invent():
    with pytest.raises(UserError, match="no chat template"):
        opening(byte_tokenizer())


def test_a_target_whose_template_fails_cannot_invent():
    tokenizer = inventor()
    tokenizer._tokenizer.chat_template = "{{ raise_exception('never') }}"
    with pytest.raises(UserError, match=r"cannot be applied \(never\).*give --data"):
        opening(tokenizer)
