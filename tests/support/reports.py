"""Benchmark reports made by hand."""

from dflash_mlx.measure.report import Report
from dflash_mlx.measure.run import Run

MACHINE = {
    "chip": "a chip",
    "memory_gb": 8.0,
    "system": "a system",
    "device": "Device(cpu, 0)",
    "python": "3.11.0",
    "versions": {"mlx": "1", "mlx-lm": "2", "dflash-mlx": "3"},
}


def made_run(arm: str = "plain", prompt: str = "code-1", **changes: object) -> Run:
    """A run at 10 tokens a second, of one token a round."""
    fields = {
        "arm": arm,
        "prompt": prompt,
        "kind": prompt.split("-")[0],
        "context": 0,
        "repeat": 0,
        "prompt_tokens": 20,
        "tokens": 11,
        "finish_reason": "length",
        "seconds": 2.0,
        "first_token_seconds": 1.0,
        "prompt_tps": 20.0,
        "decode_tps": 10.0,
        "reported_prompt_tps": 20.0,
        "reported_decode_tps": 10.0,
        "peak_gb": 1.0,
        "working_gb": 0.1,
        "tau": 1.0,
        "acceptance": [],
        "block_rounds": {"1": 11},
        "tokens_per_round": [1] * 11,
        "same_text": True,
    }
    return Run(**(fields | changes))


def drafting_run(arm: str, prompt: str, speed: float, **changes: object) -> Run:
    """A run that drafted, at ``speed`` tokens a second."""
    fields = {
        "decode_tps": speed,
        "tau": 2.0,
        "acceptance": [0.75, 0.25],
        "block_rounds": {"3": 10},
        "tokens_per_round": [3, 2, 1] * 10,
    }
    return made_run(arm, prompt, **(fields | changes))


def made_report(**changes: object) -> Report:
    """Two arms, two kinds, two lengths of prompt."""
    runs = [
        run
        for context in (0, 100)
        for prompt, speed in (("code-1", 20.0), ("prose-1", 5.0))
        for run in (
            made_run("plain", prompt, context=context, prompt_tokens=context or 20),
            drafting_run("block 3", prompt, speed, context=context, prompt_tokens=context or 20),
        )
    ]
    fields = {
        "date": "2000-01-01T00:00:00+00:00",
        "machine": MACHINE,
        "models": {
            "target": {"name": "org/target", "revision": None, "commit": "0123456789abcdef"},
            "drafter": {"name": "drafter", "revision": None, "commit": None},
            "mlx_lm_draft_model": None,
        },
        "settings": {"choice": "greedy", "max_tokens": 11, "repeats": 1, "prompts": 2},
        "arms": ["plain", "block 3"],
        "planned": len(runs),
        "runs": runs,
    }
    return Report(**(fields | changes))
