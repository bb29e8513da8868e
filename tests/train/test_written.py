"""What the target writes: that it is the target's, and that an interrupted file goes on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.disk import FULL, files_up_to
from support.plain import plain_greedy
from support.tiny import tiny_model
from support.tokenizer import EOS, byte_tokenizer

from dflash_mlx.errors import UserError
from dflash_mlx.train.recipe import Recipe
from dflash_mlx.train.written import INVENTING, Author, opening

QUESTIONS = [[*text.encode()] for text in ("ab", "bcd", "c", "defg", "e")]
SHORT = Recipe(output=Path(), max_tokens=9, generation_batch=2)


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama", vocab_size=260)


def write(model, path, questions=QUESTIONS, eos=(), **changes):
    """The answers, and how many were there before each batch that was drawn."""
    author, drawn = Author(model, byte_tokenizer(eos), replace(SHORT, **changes)), []
    draw = author.draw

    def note(prompts, place):
        drawn.append(place)
        return draw(prompts, place)

    author.draw = note
    answers = author.answers(questions, EOS, path)
    assert len(answers) == len(questions)
    return answers, drawn


def texts(answers):
    return [sequence.tokens.tolist() for sequence in answers]


def test_answers_are_the_targets_greedy_text(model, tmp_path):
    answers, _ = write(model, tmp_path / "a")
    for question, sequence in zip(QUESTIONS, answers, strict=True):
        answer = plain_greedy(model, question, 9)
        if EOS in answer:
            answer = answer[: answer.index(EOS) + 1]
        assert sequence.tokens.tolist() == question + answer
        assert sequence.answers() == [(len(question), len(sequence.tokens))]


def test_an_end_token_is_learned(model, tmp_path):
    first = plain_greedy(model, QUESTIONS[0], 9)
    answers, _ = write(model, tmp_path / "a", QUESTIONS[:1], eos=[first[3]])
    assert texts(answers) == [[*QUESTIONS[0], *first[: first.index(first[3])], EOS]]


@pytest.mark.parametrize("there", [2, 3])
@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_an_interrupted_file_goes_on(model, tmp_path, temp, there):
    whole, part = tmp_path / "whole", tmp_path / "part"
    answers, _ = write(model, whole, temp=temp)
    lines = whole.read_text().splitlines(keepends=True)
    # A batch of two answers is there, perhaps one of the next, and one that was cut short.
    part.write_text("".join(lines[: 1 + there]) + lines[1 + there][:9])
    again, drawn = write(model, part, temp=temp)
    assert drawn == [2, 4] and texts(again) == texts(answers)
    assert part.read_text() == whole.read_text()


def test_answers_go_on_once_the_disk_has_room(model, tmp_path):
    whole, part = tmp_path / "whole", tmp_path / "part"
    write(model, whole)
    # The head and a batch of two have room, and a part of the second batch.
    room = sum(map(len, whole.read_bytes().splitlines(keepends=True)[:3])) + 9
    with files_up_to(room), pytest.raises(UserError, match=f"part {FULL}"):
        write(model, part)
    assert write(model, part)[1][0] == 2 and part.read_bytes() == whole.read_bytes()


def test_sampling_depends_on_the_seed(model, tmp_path):
    a, b, c = (
        texts(write(model, tmp_path / str(i), temp=1.0, seed=seed)[0])
        for i, seed in enumerate((0, 0, 1))
    )
    assert a == b != c


def test_files_that_do_not_fit_are_refused(model, tmp_path):
    path = tmp_path / "a"
    write(model, path)
    whole = path.read_text()
    for questions, changes in ((QUESTIONS[:2], {}), (QUESTIONS, {"max_tokens": 8})):
        with pytest.raises(UserError, match="other questions or by other settings"):
            write(model, path, questions, **changes)
    path.write_text(whole + whole.splitlines(keepends=True)[-1])
    with pytest.raises(UserError, match="more answers than"):
        write(model, path)
    path.write_text(whole.replace("[", "{", 1))
    with pytest.raises(UserError, match="damaged in line 2"):
        write(model, path)


def test_an_empty_file_is_begun(model, tmp_path):
    (tmp_path / "a").touch()
    assert write(model, tmp_path / "a")[1] == [0, 2, 4]


def inventor(template="{% for m in messages %}<{{ m.content }}>{% endfor %}"):
    """A tokenizer whose template opens the user's turn, and many tokens that end it."""
    return byte_tokenizer(eos=range(0, 256, 16), template=template)


def test_prompts_are_invented_and_a_file_goes_on(model, tmp_path):
    path, tokenizer = tmp_path / "prompts", inventor()
    begin = opening(tokenizer)
    assert begin == [*b"<"]

    recipe = replace(SHORT, **INVENTING, self_prompts=9, generation_batch=4)

    def invent():
        Author(model, tokenizer, recipe).prompts(begin, path)
        return path.read_text()

    whole = invent()
    lines = whole.splitlines(keepends=True)
    entries = [json.loads(line) for line in lines]
    prompts = {entry["prompt"] for entry in entries}
    assert len(prompts) == len(entries) == 9
    assert all(sum(map(str.isalpha, text)) >= 8 for text in prompts)
    assert entries[-1]["batch"] > entries[0]["batch"]
    for there in (0, 1, 4, 8):
        path.write_text("".join(lines[:there]) + lines[there][:9])
        assert invent() == whole
    path.write_text("{}\n")
    with pytest.raises(UserError, match="damaged in line 1"):
        invent()


def test_a_target_that_repeats_itself_invents_too_little(model, tmp_path):
    """Or comes to no end."""
    short = Author(model, inventor(), replace(SHORT, max_tokens=1, self_prompts=1))
    with pytest.raises(UserError, match="only 0 different prompts in 32 tries"):
        short.prompts([60], tmp_path / "x")


@pytest.mark.parametrize(
    "template, words",
    [
        (None, "no chat template"),
        ("{{ raise_exception('never') }}", r"cannot be applied \(never\)"),
        ("{{ messages[0].content }}", "hides where a prompt begins"),
    ],
)
def test_templates_by_which_no_prompt_can_be_invented(template, words):
    with pytest.raises(UserError, match=f"{words}.*give --data"):
        opening(inventor(template))
