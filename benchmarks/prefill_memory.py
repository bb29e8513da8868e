"""Does prefill keep the features of the whole prompt? Peak memory by prompt length and taps.

    python benchmarks/prefill_memory.py [--lengths 2048,4096,8000]

Prefills the embedded target without a drafter and with random drafters of 1, 5 and 15 taps, and
prints the peak above the weights. A drafter adds its context K/V and one chunk's features. The
last column is what keeping the whole prompt's features would add.
"""

import argparse
import dataclasses
import json

import mlx.core as mx
from common import machine

import dflash_mlx
from dflash_mlx.drafter.config import DrafterConfig
from dflash_mlx.drafter.model import Drafter
from dflash_mlx.engine.prefill import prefill
from dflash_mlx.loading.embedded import embedded_drafter
from dflash_mlx.loading.loader import make_pair

TAPS = (0, 1, 5, 15)


def peak_mb(pair: dflash_mlx.Pair, length: int) -> float:
    """Peak memory of one prefill above what was held before, in MB."""
    target, drafter = pair.target, pair.drafter
    tokens = mx.random.randint(10, 40000, (length,)).tolist()
    mx.clear_cache()
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    caches = target.make_cache()
    context = drafter.make_context(mx.array([0], mx.int32)) if drafter else None
    prefill(target, drafter, tokens, caches, context, 0, 2048, lambda *_: None)
    return (mx.get_peak_memory() - held) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="2048,4096,8000")
    lengths = [int(n) for n in parser.parse_args().lengths.split(",")]
    embedded, _ = dflash_mlx.load()
    embedded.release()
    model = embedded.model
    config = DrafterConfig.from_dict(json.loads((embedded_drafter() / "config.json").read_text()))
    del embedded

    print(f"{machine()}; peak MB above the weights, chunks of 2048\n")
    print("| prompt | taps | peak MB | more than without | all features would be |")
    print("|---|---|---|---|---|")
    for length in lengths:
        plain = None
        for taps in TAPS:
            drafter = None
            if taps:
                drafter = Drafter(dataclasses.replace(config, target_layer_ids=tuple(range(taps))))
            with make_pair(model, drafter) as pair:
                peak = peak_mb(pair, length)
            plain = peak if plain is None else plain
            features = taps * config.target_hidden_size * 4 * length / 1e6
            print(
                f"| {length} | {taps} | {peak:.0f} | {peak - plain:+.0f} | {features:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
