"""Is the text the target's own? The embedded pair over all prompts, with and without drafting.

    python benchmarks/lossless.py [--max-tokens 128]

Greedy decoding and sampling at temperature 0.8 (coupled) must equal plain decoding token for token,
and greedy decoding also ``mlx_lm.stream_generate``. Exit code 1 if anything differs.
"""

import argparse
import sys

import mlx_lm
from common import machine, prompts

import dflash_mlx
from dflash_mlx.measure.run import first_difference


def verdict(ours: list[int], theirs: list[int]) -> str:
    """``=`` or the index of the first token that differs."""
    index = first_difference(ours, theirs)
    return "=" if index is None else str(index)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-tokens", type=int, default=128)
    n = parser.parse_args().max_tokens
    pair, tokenizer = dflash_mlx.load()

    def tokens(prompt: list[int], **options: object) -> tuple[list[int], float]:
        if options.get("draft", True):
            options["block_size"] = pair.drafter.block_size
        responses = list(dflash_mlx.stream_generate(pair, tokenizer, prompt, n, **options))
        return [r.token for r in responses], responses[-1].tau

    print(f"{machine()}, {n} tokens\n")
    print("| prompt | tokens | τ greedy | greedy | = mlx-lm | τ T=0.8 | coupled T=0.8 |")
    print("|---|---|---|---|---|---|---|")
    differing = 0
    for name, prompt in prompts(tokenizer).items():
        plain, _ = tokens(prompt, draft=False)
        greedy, tau = tokens(prompt)
        theirs = [r.token for r in mlx_lm.stream_generate(pair.model, tokenizer, prompt, n)]
        warm = {"temp": 0.8, "seed": 1}
        sampled_plain, _ = tokens(prompt, draft=False, **warm)
        sampled, sampled_tau = tokens(prompt, **warm)
        verdicts = [
            verdict(greedy, plain),
            verdict(greedy, theirs),
            verdict(sampled, sampled_plain),
        ]
        differing += sum(v != "=" for v in verdicts)
        print(
            f"| {name} | {len(plain)} | {tau:.2f} | {verdicts[0]} | {verdicts[1]} "
            f"| {sampled_tau:.2f} | {verdicts[2]} |",
            flush=True,
        )
    print(f"\n{differing or 'no'} differences (= equal, else the first differing token)")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
