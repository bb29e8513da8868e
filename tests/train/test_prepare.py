"""From options and files to the sequences of a training."""

import pytest
from support.commands import write_rows
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx.errors import UserError
from dflash_mlx.train.prepare import Preparation, read_data
from dflash_mlx.train.recipe import Recipe
from dflash_mlx.train.world import World

TEXTS = [{"text": f"text {i:02}"} for i in range(40)]
SAID = {"prompt": "said", "completion": "so"}
SHORT = {"max_tokens": 6, "generation_batch": 4}


@pytest.fixture
def prepare(tmp_path):
    """A function that gives the texts to train on, those held out, and what the user was told."""
    model, data = tiny_model("llama", vocab_size=260), tmp_path / "data"
    data.mkdir()

    def prepared(train, valid=(), tokenizer=None, **options):
        for name, rows in (("train", train), ("valid", valid)):
            if rows:
                write_rows(data / f"{name}.jsonl", rows)
        asked, said = Recipe(output=tmp_path, data=data, **options), []
        asked.folder.mkdir(exist_ok=True)
        examples = read_data(asked)
        tokenizer = tokenizer or byte_tokenizer()
        preparation = Preparation(model, tokenizer, asked, examples, World(), said.append)
        return *preparation.sequences(), said

    return prepared


def texts(sequences):
    return [bytes(t for t in s.tokens.tolist() if t < 256).decode("latin-1") for s in sequences]


def test_a_twentieth_is_held_out_and_the_split_is_the_seeds(prepare):
    train, held_out, _ = prepare(TEXTS)
    assert (len(train), len(held_out)) == (38, 2)
    assert sorted(texts(train + held_out)) == [row["text"] for row in TEXTS]
    again, other = prepare(TEXTS)[1], prepare(TEXTS, seed=1)[1]
    assert texts(again) == texts(held_out) != texts(other)


def test_held_out_counts(prepare):
    for count in (0, 7):
        assert len(prepare(TEXTS, held_out=count)[1]) == count
    # Of some texts too little is left, which only their tokens tell.
    with pytest.raises(UserError, match="of 1 usable, none is left"):
        prepare([{"text": ""}, *TEXTS[:1]], held_out=1)


@pytest.mark.parametrize("count, expected", [(None, 32), (5, 5), (0, 0)])
def test_a_file_to_evaluate_on(prepare, count, expected):
    valid = [{"text": f"other {i:02}"} for i in range(40)]
    train, held_out, said = prepare(TEXTS, valid, held_out=count)
    assert len(train) == 40 and not said
    assert texts(held_out) == [f"other {i:02}" for i in range(expected)]


def test_too_few_to_hold_out_is_said(prepare):
    _, held_out, said = prepare(TEXTS, TEXTS[:3], held_out=5)
    assert len(held_out) == 3 and said == ["valid.jsonl has only 3 sequences to hold out, not 5."]


def test_prompts_are_answered_and_answers_kept(prepare):
    train, _, said = prepare([{"prompt": "ask"}, SAID], held_out=0, **SHORT)
    asked, answered = sorted(train, key=lambda s: s.tokens.tolist())
    assert texts([answered]) == ["saidso"] and answered.answers() == [(4, 7)]
    assert asked.answers()[0][0] == 3 and len(asked.tokens) > 3
    assert any("--regenerate" in line for line in said)


def test_all_are_answered_anew(prepare):
    [sequence], _, said = prepare([SAID], held_out=0, regenerate=True, **SHORT)
    assert not texts([sequence])[0].startswith("saidso") and not said


@pytest.mark.parametrize(
    "words, rows, options",
    [
        ("line 2 is plain text", [SAID, {"text": "a"}], {"regenerate": True}),
        ("line 1 has no answer", [{"prompt": "ask"}], {"regenerate": False}),
        ("--temp, --top-p", [SAID, SAID], {"temp": 1.0}),
        ("on plain text", TEXTS, {"template_options": {"enable_thinking": False}}),
        ("none is left to train on", [SAID, SAID], {"held_out": 2}),
    ],
)
def test_what_the_data_do_not_allow(words, rows, options, tmp_path):
    data = write_rows(tmp_path / "x.jsonl", rows)
    with pytest.raises(UserError, match=words):
        read_data(Recipe(output=tmp_path, data=data, **options))
    assert len(read_data(Recipe(output=tmp_path, data=data, seed=1))[0]) == len(rows)


def test_what_is_too_long_or_too_short_is_said(prepare):
    rows = [*TEXTS[:3], {"text": ""}, {"prompt": "x" * 20}, {"prompt": "y"}]
    train, _, said = prepare(rows, held_out=0, max_seq_length=10, **SHORT)
    assert len(train) == 4 and max(len(s.tokens) for s in train) <= 10
    assert any(line.startswith("Left out 1 sequence with") for line in said)
    assert any(line.startswith("Left out 1 prompt of") for line in said)
    with pytest.raises(UserError, match="max-seq-length"):
        prepare(rows[4:5], max_seq_length=10, **SHORT)
    with pytest.raises(UserError, match="none has two tokens"):
        prepare(rows[3:4])


def test_invented_prompts_join_the_data(prepare, tmp_path):
    tokenizer = byte_tokenizer(
        range(0, 256, 16), template="{% for m in messages %}<{{ m.content }}>{% endfor %}"
    )
    train, held_out, _ = prepare(
        [{"prompt": "given"}],
        tokenizer=tokenizer,
        self_prompts=3,
        held_out=1,
        max_tokens=6,
        generation_batch=16,
        temp=1.0,
    )
    found = [s for s in texts(train + held_out) if s.startswith("<given>")]
    assert len(train) + len(held_out) >= 2 and len(found) <= 1
    prompts = tmp_path / "training" / "prompts.jsonl"
    assert len(prompts.read_text().splitlines()) == 3
