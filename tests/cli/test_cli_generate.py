"""The ``generate`` command: a tiny pair from folders, and every way to get it wrong."""

import io
import json
import sys
import warnings
from dataclasses import fields
from pathlib import Path

import mlx.core as mx
import pytest
from support.folders import save_drafter, save_target
from support.tokenizer import EOS

import dflash_mlx
from dflash_mlx.cli import generate as command
from dflash_mlx.cli.main import main
from dflash_mlx.generation.options import Options


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "drafter")
    return ["--model", str(tmp_path / "target"), "--draft-model", str(tmp_path / "drafter")]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``dflash-mlx generate``."""
    try:
        code = main(["generate", *arguments])
    except SystemExit as exit_:
        code = exit_.code
    out, err = capsys.readouterr()
    return code, out, err


def test_text_and_statistics(pair, capsys):
    code, out, _ = run(capsys, *pair, "-p", "hello", "-m", "20", "--block-size", "8")
    assert code == 0
    assert "Generation: 20 tokens" in out and "of block 8, τ" in out and "Peak memory" in out
    assert "context K/V" not in out


def test_verbose_is_mlx_lms_and_more(pair, capsys):
    asked = (*pair, "-p", "hello", "-m", "9", "--block-size", "8")
    out = run(capsys, *asked, "--verbose")[1]
    assert ("context K/V plain (not on a Metal device)" in out) is not mx.metal.is_available()
    for no in ("False", "f"):
        assert run(capsys, *asked, "--verbose", no) == run(capsys, *asked, "--quiet")
    assert "Generation: 9 tokens" in run(capsys, *asked, "--verbose", "T")[1]


def test_quiet_prints_the_text_alone(pair, capsys):
    _, text, _ = run(capsys, *pair, "-p", "hello", "-m", "20", "--quiet")
    _, plain, _ = run(capsys, *pair[:2], "-p", "hello", "-m", "20", "--quiet", "--no-draft")
    model, tokenizer = dflash_mlx.load(pair[1])
    assert text == plain == dflash_mlx.generate(model, tokenizer, "hello", max_tokens=20) + "\n"


def test_prompt_from_standard_input(pair, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello"))
    piped = run(capsys, *pair, "-p", "-", "-m", "9", "--quiet")
    assert piped == run(capsys, *pair, "-p", "hello", "-m", "9", "--quiet")


def test_block_size_and_no_draft_show_in_the_statistics(pair, capsys):
    assert "of block 3" in run(capsys, *pair, "-p", "hello", "-m", "9", "--block-size", "3")[1]
    assert "plain decoding" in run(capsys, *pair[:2], "-p", "hello", "-m", "9", "--no-draft")[1]


@pytest.mark.parametrize("option", [[], ["--block-size", "auto"]])
def test_block_size_is_chosen_by_itself(option, pair, capsys):
    code, out, _ = run(capsys, *pair, "-p", "hello", "-m", "60", *option)
    assert code == 0 and "times the speed without drafting" in out


def test_every_option_reaches_the_generation(pair, capsys, monkeypatch):
    seen = {}

    def stream(model, tokenizer, prompt, **options):
        seen.update(options)
        return dflash_mlx.stream_generate(model, tokenizer, prompt, **options)

    monkeypatch.setattr(command, "stream_generate", stream)
    values = {
        "temp": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "min_tokens_to_keep": 2,
        "xtc_probability": 0.3,
        "xtc_threshold": 0.2,
        "seed": 3,
        "acceptance": "rejection",
        "logit_bias": {"5": 2},
        "repetition_penalty": 1.1,
        "repetition_context_size": 11,
        "presence_penalty": 0.2,
        "presence_context_size": 12,
        "frequency_penalty": 0.3,
        "frequency_context_size": 13,
        "block_size": 4,
        "max_kv_size": 100,
        "prefill_step_size": 5,
        "max_tokens": 6,
    }
    flags = [x for k, v in values.items() for x in (f"--{k.replace('_', '-')}", _written(v))]
    flags += ["--stop", "a", "--stop", "b"]
    assert run(capsys, *pair, "-p", "hello", *flags)[0] == 0
    # What is left has another flag, or is refused for this target.
    others = {"draft", "kv_bits", "kv_group_size", "quantized_kv_start"}
    given = values | {"logit_bias": {5: 2.0}, "stop": ("a", "b")}
    assert {name: seen[name] for name in given} == given
    # As in mlx-lm: a line break, and what ends the text.
    assert sorted(seen["xtc_special_tokens"]) == [ord("\n"), EOS]
    assert given.keys() | others == {f.name for f in fields(Options) if "help" in f.metadata}


def _written(value):
    return json.dumps(value) if isinstance(value, dict) else str(value)


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]"
    "{{ '<think>' if enable_thinking else '<think></think>' }}{% endif %}"
)
CHATS = {
    # Without think tokens in the vocabulary, mlx-lm says no.
    "plain": ([], "[user]hello[assistant]<think></think>"),
    "thinking": (
        ["--chat-template-config", '{"enable_thinking": true}'],
        "[user]hello[assistant]<think>",
    ),
    "system": (["--system-prompt", "A"], "[system]A[user]hello[assistant]<think></think>"),
    "prefilled": (["--prefill-response", "Oh"], "[user]hello[assistant]Oh"),
    "ignored": (["--ignore-chat-template"], "hello"),
}


@pytest.mark.parametrize(("options", "expected"), CHATS.values(), ids=CHATS)
def test_chat_options_reach_the_template(options, expected, pair, capsys, monkeypatch):
    seen = []

    def stream(model, tokenizer, prompt, **options):
        seen.append(tokenizer.decode(prompt))
        return dflash_mlx.stream_generate(model, tokenizer, prompt, **options)

    monkeypatch.setattr(command, "stream_generate", stream)
    (Path(pair[1]) / "chat_template.jinja").write_text(TEMPLATE)
    assert run(capsys, *pair[:2], "-p", "hello", "-m", "2", "--no-draft", *options)[0] == 0
    assert seen == [expected]


def test_extra_eos_token_ends_the_text(pair, capsys):
    _, text, _ = run(capsys, *pair, "-p", "hello", "-m", "30", "--quiet")
    character = next(c for c in text if c.isascii() and c.isalpha())
    _, cut, _ = run(
        capsys, *pair, "-p", "hello", "-m", "30", "--quiet", "--extra-eos-token", character
    )
    assert cut == text[: text.index(character)] + "\n"
    several = ("--extra-eos-token", "\u0120", character, "--quiet")
    found = run(capsys, *pair, "-p", "hello", "-m", "30", *several)[1]
    assert found == text[: min(text.index(x) for x in (" ", character) if x in text)] + "\n"


FOREIGN = {
    "--num-draft-tokens": "--block-size",
    "--num-draft-tokens=3": "--block-size",
    "--use-default-chat-template": "Leave it out",
    "--prompt-cache-file": "load_prompt_cache",
    "--quantize-activations": "not supported",
    "-qa": "not supported",
    "--image": "text",
}


@pytest.mark.parametrize("flag", FOREIGN)
def test_what_mlx_lms_command_has_is_named(flag, capsys):
    code, _, err = run(capsys, "-p", "x", flag, "3")
    assert code == 2 and f"mlx-lm's {flag.partition('=')[0]} " in err and FOREIGN[flag] in err


def test_interrupt_prints_the_statistics_so_far(pair, capsys, monkeypatch):
    def stream(*args, **options):
        for i, response in enumerate(dflash_mlx.stream_generate(*args, **options)):
            if i == 5:
                raise KeyboardInterrupt
            yield response

    monkeypatch.setattr(command, "stream_generate", stream)
    code, out, _ = run(capsys, *pair, "-p", "hello", "-m", "20")
    assert code == 130 and "Generation: 5 tokens" in out


def test_warnings_stand_below_the_text_and_once(pair, capsys, monkeypatch):
    def stream(*args, **options):
        for response in dflash_mlx.stream_generate(*args, **options):
            yield response
            print(response.text, end="", file=sys.stderr)
            warnings.warn("`temp` is\n odd", stacklevel=1)

    monkeypatch.setattr(command, "stream_generate", stream)
    code, out, err = run(capsys, *pair[:2], "-p", "hello", "-m", "9", "--no-draft", "--quiet")
    assert code == 0
    assert err == out.removesuffix("\n") + "warning: --temp is odd\n"


MISTAKES = {
    "empty prompt": (["-p", " "], "prompt is empty"),
    "no prompt": ([], "-p/--prompt"),
    "negative temperature": (["-p", "x", "--temp", "-1"], "--temp"),
    "top-p above 1": (["-p", "x", "--top-p", "1.5"], "--top-p must be between 0 and 1"),
    "negative top-k": (["-p", "x", "--top-k", "-2"], "--top-k"),
    "negative seed": (["-p", "x", "--seed", "-2"], "--seed"),
    "block size 0": (["-p", "x", "--block-size", "0"], "from 1 up"),
    "block size beyond training": (["-p", "x", "--block-size", "9"], "between 1 and 8"),
    "block size in words": (["-p", "x", "--block-size", "big"], "--block-size must be 'auto' or"),
    "max-tokens": (["-p", "x", "-m", "-2"], "--max-tokens"),
    "max-tokens is no number": (["-p", "x", "-m", "many"], "invalid int"),
    "max-kv-size too small": (["-p", "x", "--max-kv-size", "10"], "--max-kv-size"),
    "prefill step": (["-p", "x", "--prefill-step-size", "0"], "--prefill-step-size"),
    "bias is no JSON": (["-p", "x", "--logit-bias", "{"], "--logit-bias"),
    "bias is no object": (["-p", "x", "--logit-bias", "[1]"], "--logit-bias"),
    "bias of no token": (["-p", "x", "--logit-bias", '{"a": 1}'], "--logit-bias"),
    "bias beyond the vocabulary": (["-p", "x", "--logit-bias", '{"999": 1}'], "999"),
    "penalty": (["-p", "x", "--repetition-penalty", "-1"], "--repetition-penalty"),
    "context size": (["-p", "x", "--presence-context-size", "0"], "--presence-context-size"),
    "empty stop": (["-p", "x", "--stop", ""], "stop"),
    "system prompt without template": (["-p", "x", "--system-prompt", "y"], "chat template"),
    "template options": (["-p", "x", "--chat-template-config", "{"], "--chat-template-config"),
    "prompt beyond the context": (["-p", "x" * 5000], "context"),
    "unknown end token": (["-p", "x", "--extra-eos-token", "nonesuch"], "--extra-eos-token"),
    "template option": (["-p", "x", "--chat-template-config", "[]"], "--chat-template-config"),
    "prompt in another encoding": (["-p", "\udcff"], "UTF-8"),
    "unknown option": (["-p", "x", "--beams", "4"], "--beams"),
    "xtc threshold": (["-p", "x", "--xtc-threshold", "0.2"], "without --xtc-probability"),
    "drafter and no draft": (["-p", "x", "--no-draft"], "--no-draft decodes plainly"),
    "absurd kv bits": (["-p", "x", "--kv-bits", "0"], "--kv-bits must be a whole number"),
    "cache too small": (["-p", "x", "--max-kv-size", "9"], "shapes its own caches"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_one_sentence_and_exit_code_2(mistake, pair, capsys):
    arguments, words = MISTAKES[mistake]
    code, out, err = run(capsys, *pair, *arguments)
    assert code == 2 and out == ""
    assert words in err and "Traceback" not in err


def test_unknown_model(tmp_path, capsys):
    code, out, err = run(capsys, "--model", str(tmp_path / "none"), "-p", "x")
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.pair
def test_embedded_pair_writes_a_python_function(target_folder, capsys):
    prompt = "Write a Python function that returns the n-th Fibonacci number."
    code, out, _ = run(capsys, "-p", prompt, "-m", "48", "--block-size", "8")
    assert code == 0 and "def " in out and "of block 8" in out
    assert (
        out.split("=" * 10)[1]
        == run(capsys, "-p", prompt, "-m", "48", "--no-draft")[1].split("=" * 10)[1]
    )
