"""Prompts to train the embedded drafter with, as JSONL: made of templates, none of the benchmark's.

    python benchmarks/training_prompts.py --count 1500 > prompts.jsonl

As many of each kind (code, math, structured, chat, prose) while its templates last, shuffled. A
prompt that shares more than half of its content words with a bundled benchmark prompt is left out.
"""

import argparse
import itertools
import json
import random
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from dflash_mlx.measure.prompts import read_prompts

TEMPLATES = Path(__file__).with_suffix(".toml")
# Words of the request, which do not say what it is about.
COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and are as by can do does each explain for from give how i in is it its make me my "
        "of on one or show step that the to what who why with write you your",
    )
)


def main() -> None:
    """Print JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for row in make_prompts(args.count, args.seed):
        print(json.dumps(row, ensure_ascii=False))


def make_prompts(count: int, seed: int) -> list[dict[str, str]]:
    """At most ``count`` prompts, as many of each kind, templates equally often while they last."""
    chance = random.Random(seed)
    known = [content_words(p.messages[-1]["content"]) for p in read_prompts()]
    kinds = tomllib.loads(TEMPLATES.read_text(encoding="utf-8"))
    rows = []
    for kind, templates in kinds.items():
        pools = [list(fill(**template)) for template in templates]
        for pool in pools:
            chance.shuffle(pool)
        # Round robin, so that a template with many combinations does not crowd out the others.
        mixed = [p for some in itertools.zip_longest(*pools) for p in some if p is not None]
        new = [prompt for prompt in mixed if not any(is_close(prompt, words) for words in known)]
        rows += [{"prompt": prompt, "kind": kind} for prompt in new[: count // len(kinds)]]
    chance.shuffle(rows)
    return rows


def fill(template: str, **slots: list[str]) -> Iterator[str]:
    """All combinations of the slots' choices."""
    for choice in itertools.product(*slots.values()):
        yield template.format(**dict(zip(slots, choice, strict=True)))


def is_close(prompt: str, known: frozenset[str]) -> bool:
    """Whether more than half of either prompt's content words are the other's too."""
    words = content_words(prompt)
    return len(words & known) > min(len(words), len(known)) / 2


def content_words(prompt: str) -> frozenset[str]:
    """The words that say what a prompt is about."""
    return frozenset(re.findall(r"\w+", prompt.lower())) - COMMON


if __name__ == "__main__":
    main()
