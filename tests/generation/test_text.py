"""The text of a generation: characters kept whole, stop strings wherever their pieces fall."""

import itertools

import pytest
from support.chain import chain_model
from support.pairs import oracle_pair, respond, text_of, tokens_of
from support.tokenizer import DETOKENIZERS, EOS, byte_tokenizer
from tokenizers.processors import TemplateProcessing

from dflash_mlx import UserError, generate, stream_generate
from dflash_mlx.generation.text import StopStrings

WORDS = ("<|end|>", "stop", " here", "\n\n")
VOCAB = EOS + 1 + len(WORDS)
# No byte twice: every token has one successor. One to four bytes a character, and a lone space.
PLAIN = "abcdefghijk"
MIXED = "aé b€c漢\n😀dŁ"
START = 0


def tokens_for(text: str) -> list[int]:
    return list(text.encode())


@pytest.fixture(params=DETOKENIZERS)
def tokenizer(request):
    return byte_tokenizer(words=WORDS, detokenizer=request.param)


def run(tokens, n, tokenizer=None, counts=(2, 0, 3, 1), **options):
    model = chain_model([START, *tokens], VOCAB)
    tokenizer = tokenizer or byte_tokenizer(words=WORDS)
    with oracle_pair(model, [START, *tokens], counts) as pair:
        return respond(pair, tokenizer, [START], n, **options)


def test_the_hand_made_tokenizer_is_real(tokenizer):
    assert tokenizer.encode("é<eos>stop") == [*"é".encode(), EOS, 258]
    assert tokenizer.decode([*"漢".encode(), 257]) == "漢<|end|>"


@pytest.mark.parametrize("n", range(1, len(MIXED.encode()) + 1))
def test_characters_are_never_split(n, tokenizer):
    tokens = tokens_for(MIXED)
    responses = run(tokens, n, tokenizer)
    assert tokens_of(responses) == tokens[:n]
    assert text_of(responses) == tokenizer.decode(tokens[:n])
    # Only the end of the text can cut a character in two.
    assert not any("\ufffd" in r.text for r in responses[:-1])
    assert responses[-1].finish_reason == "length"


@pytest.mark.parametrize("n", range(1, 41))
def test_text_equals_the_decoded_tokens(n, tokenizer):
    tokens = [*b"0123456789", *MIXED.encode(), *b"KLMNOPQRSTUVWXYZ"][:40]
    responses = run(tokens, n, tokenizer)
    assert text_of(responses) == tokenizer.decode(tokens[:n])


@pytest.mark.parametrize("draft", [True, False], ids=["draft", "plain"])
def test_eos_inside_a_character_flushes_it(draft, tokenizer):
    tokens = [*b"ab", *"€".encode()[:2], EOS, *b"cd"]
    responses = run(tokens, 20, tokenizer, draft=draft)
    assert tokens_of(responses) == tokens[:5]
    assert text_of(responses) == tokenizer.decode(tokens[:4])
    assert responses[-1].finish_reason == "stop"


@pytest.mark.parametrize("length", range(1, 8))
@pytest.mark.parametrize("begin", range(0, 11, 2))
def test_stop_string_split_across_tokens_and_rounds(begin, length):
    stop = PLAIN[begin : begin + length]
    responses = run(tokens_for(PLAIN), len(PLAIN), stop=stop)
    assert text_of(responses) == PLAIN[:begin]
    assert responses[-1].finish_reason == "stop"
    # Nothing is generated past the token that completes the stop string.
    assert tokens_of(responses) == tokens_for(PLAIN[:begin] + stop)


@pytest.mark.parametrize("counts", list(itertools.product(range(4), repeat=2)))
def test_stop_string_whatever_is_accepted(counts):
    responses = run(tokens_for(PLAIN), len(PLAIN), counts=counts, stop=["efg"])
    assert text_of(responses) == "abcd"


def test_held_text_comes_when_no_stop_does():
    for n in range(1, len(PLAIN) + 1):
        responses = run(tokens_for(PLAIN), n, stop=[PLAIN + "!", "k!", "bcdX"])
        assert text_of(responses) == PLAIN[:n]
        assert responses[-1].finish_reason == "length"


def test_held_text_comes_at_the_eos():
    responses = run([*b"abc", EOS], 10, stop="bcd")
    assert text_of(responses) == "abc"
    assert responses[-1].finish_reason == "stop"


def test_text_that_may_begin_a_stop_is_held_back():
    responses = run(tokens_for(PLAIN), 6, stop="cde!")
    assert [r.text for r in responses] == ["a", "b", "", "", "", "cdef"]


def test_stop_string_at_the_very_end():
    for n in (3, 5, 11):
        responses = run(tokens_for(PLAIN), n, stop=PLAIN[n - 2 : n])
        assert text_of(responses) == PLAIN[: n - 2]
        assert responses[-1].finish_reason == "stop"


def test_first_of_several_stops_wins():
    responses = run(tokens_for(PLAIN), 11, stop=("hij", "cd", "abX", "k"))
    assert text_of(responses) == "ab"


def test_stop_inside_one_token():
    tokens = [*b"a", 259, *b"b"]
    responses = run(tokens, 10, stop="er")
    assert text_of(responses) == "a h"
    assert tokens_of(responses) == tokens[:2]


def test_stop_made_of_the_end_of_one_token_and_the_start_of_the_next():
    tokens = [258, 259, *b"b"]
    assert text_of(run(tokens, 10, stop="op he")) == "st"


def test_stop_string_that_the_tokenizer_flushes_only_at_the_end(tokenizer):
    # mlx-lm's detokenizers hold a lone space back until the next token.
    responses = run([*b"ab "], 3, tokenizer, stop="b ")
    assert text_of(responses) == "a"
    assert responses[-1].finish_reason == "stop"


def test_stop_in_a_multi_byte_character(tokenizer):
    responses = run(tokens_for(MIXED), 40, tokenizer, stop="漢")
    assert text_of(responses) == MIXED[: MIXED.index("漢")]


def test_special_token_as_stop():
    responses = run([*b"ab", 257, *b"cd"], 10, stop="<|end|>")
    assert text_of(responses) == "ab"


def test_several_texts_at_once_do_not_mix(tokenizer):
    first, second = tokens_for(MIXED), tokens_for("xyÀzЖ!")
    with (
        oracle_pair(chain_model([START, *first], VOCAB), [START, *first]) as one,
        oracle_pair(chain_model([START, *second], VOCAB), [START, *second]) as two,
    ):
        streams = [
            stream_generate(pair, tokenizer, [START], max_tokens=n, stop="!")
            for pair, n in ((one, len(first)), (two, len(second)))
        ]
        texts = ["", ""]
        for pieces in itertools.zip_longest(*streams):
            for i, piece in enumerate(pieces):
                texts[i] += "" if piece is None else piece.text
    assert texts == [MIXED, "xyÀzЖ"]


def test_generate_joins_the_text_and_prints_it(capsys):
    with oracle_pair(chain_model([START, *b"abcd"], VOCAB), [START, *b"abcd"]) as pair:
        tokenizer = byte_tokenizer()
        assert generate(pair, tokenizer, [START], max_tokens=4) == "abcd"
        assert capsys.readouterr().out == ""
        assert generate(pair, tokenizer, [START], max_tokens=4, verbose=True) == "abcd"
    printed = capsys.readouterr().out
    assert "\nabcd\n" in printed
    assert "Prompt: 1 tokens" in printed
    assert "Generation: 4 tokens" in printed


def test_prompt_as_text_and_as_ids():
    with oracle_pair(chain_model([*b"abcd"], VOCAB), [*b"abcd"]) as pair:
        tokenizer = byte_tokenizer()
        assert generate(pair, tokenizer, "ab", max_tokens=2) == "cd"
        assert generate(pair, tokenizer, [97, 98], max_tokens=2) == "cd"


def test_prompt_gets_one_beginning_of_text():
    tokenizer = byte_tokenizer(words=["<bos>"])
    tokenizer.bos_token, bos = "<bos>", EOS + 1
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", bos)]
    )
    with oracle_pair(chain_model([*b"abcd"], VOCAB), [bos, *b"abcd"]) as pair:
        for prompt in ("ab", "<bos>ab"):
            responses = respond(pair, tokenizer, prompt, 2)
            assert text_of(responses) == "cd"
            assert responses[-1].prompt_tokens == 3


def test_bare_tokenizer_is_wrapped():
    with oracle_pair(chain_model([*b"abcd"], VOCAB), [*b"abcd"]) as pair:
        bare = byte_tokenizer()._tokenizer
        assert generate(pair, bare, "ab", max_tokens=2) == "cd"


@pytest.mark.parametrize("stop", ["", ["a", ""], [1], 5], ids=repr)
def test_bad_stop_is_refused(stop):
    with pytest.raises(UserError, match="stop"):
        run(tokens_for(PLAIN), 3, stop=stop)


def reference_stop(pieces, stops):
    """What a text cut into pieces shows: each piece's whole text, up to the first stop in it."""
    text = ""
    for piece in pieces:
        text += piece
        found = [text.find(s) for s in stops if s in text]
        if found:
            return text[: min(found)], True
    return text, False


@pytest.mark.parametrize(
    "stops", [("aab",), ("abab",), ("ba", "abb"), ("aaa", "b"), ("abba", "bb"), ("bab", "abaa")]
)
def test_stop_strings_equal_a_search_in_the_whole_text(stops):
    for text in map("".join, itertools.product("ab", repeat=7)):
        for cut in (1, 2, 3):
            pieces = [text[i : i + cut] for i in range(0, len(text), cut)]
            filter_, out, stopped = StopStrings(stops), "", False
            for piece in pieces:
                shown, stopped = filter_.feed(piece)
                out += shown
                if stopped:
                    break
            out += "" if stopped else filter_.flush()
            assert (out, stopped) == reference_stop(pieces, stops), (text, cut)
