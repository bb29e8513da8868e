"""What does a round launch on Metal? Counted in the graph itself, on any machine.

    python benchmarks/launches.py [--context 1024] [--write]

Takes the graph of one greedy round from MLX, for the embedded pair and for pairs as large as
Qwen3-4B and 8B without weights, with and without this project's kernels, and counts launches,
views, bytes and operations stage by stage. Nothing is run. The rules are in metal_costs.py.
``--write`` puts the tables into results/launches.md and the model made from them into
results/roofline.md.
"""

import argparse
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version

import metal_costs
from common import HERE
from metal_costs import Cost
from qwen3 import BLOCK_SIZE, qwen3_pair
from roofline import page
from round_graph import STAGES, commit_by_layer, eval_weights, round_costs

import dflash_mlx
from dflash_mlx.loading.embedded import embedded_drafter, embedded_target

BLOCK_SIZES = (4, 8, BLOCK_SIZE)
NAMES = {
    "SmolLM2-135M 4-bit, drafter 8-bit (the embedded pair)": None,
    "Qwen3-4B bf16": ("4B", None),
    "Qwen3-4B 4-bit, drafter 4-bit": ("4B", 4),
    "Qwen3-8B 4-bit, drafter 4-bit": ("8B", 4),
}


def load(sizes: tuple[str, int | None] | None) -> dflash_mlx.Pair:
    """The embedded pair as it runs on a GPU, or one without weights."""
    if sizes is None:
        pair, _ = dflash_mlx.load(embedded_target(), embedded_drafter())
    else:
        pair = qwen3_pair(*sizes)
    eval_weights(pair)
    return pair


def totals(costs: Iterable[Cost]) -> str:
    """Launches, views, MB and GFLOP as cells of a table."""
    costs = list(costs)
    views = sum(not c.launches for c in costs)
    megabytes, gigaflop = sum(c.bytes for c in costs) / 1e6, sum(c.flops for c in costs) / 1e9
    return f"{sum(c.launches for c in costs)} | {views} | {megabytes:,.1f} | {gigaflop:,.2f}"


def kinds(costs: Iterable[Cost]) -> str:
    """What is launched, most often first."""
    launches: Counter[str] = Counter()
    for cost in costs:
        launches[cost.kind] += cost.launches
    return ", ".join(f"{n} {kind}" for kind, n in launches.most_common() if n)


def stage_table(name: str, rounds: dict[str, dict[str, list[Cost]]], plain: list[Cost]) -> str:
    """Launches, bytes and operations of one pair's stages, without and with our kernels."""
    head = " | ".join(f"{path}: launches | views | MB | GFLOP" for path in rounds)
    lines = [f"## {name}", "", f"| stage | {head} |", "|" + "---|" * (1 + 4 * len(rounds))]
    for stage in STAGES:
        lines.append(f"| {stage} | " + " | ".join(totals(r[stage]) for r in rounds.values()) + " |")
    whole = [totals(c for s in r.values() for c in s) for r in rounds.values()]
    lines.append("| **round** | " + " | ".join(whole) + " |")
    lines.append("| one plain step | " + " | ".join([totals(plain)] * len(rounds)) + " |")
    return "\n".join(lines)


def commit_table(rounds: dict[str, dict[str, list[Cost]]], by_layer: list[Cost]) -> str:
    """A commit written three ways."""
    lines = ["The commit, written three ways:", ""]
    lines += ["| commit | launches | views | MB | GFLOP | launched |", "|" + "---|" * 6]
    ways = {"layer by layer": by_layer} | {path: r["commit"] for path, r in rounds.items()}
    lines += [f"| {way} | {totals(costs)} | {kinds(costs)} |" for way, costs in ways.items()]
    return "\n".join(lines)


def kind_table(stages: dict[str, list[Cost]]) -> str:
    """Launches of a round by kind of primitive."""
    lines = ["| stage | launched | only views |", "|---|---|---|"]
    for stage, costs in stages.items():
        views = Counter(c.kind for c in costs if not c.launches).most_common()
        seen = ", ".join(f"{n} {kind}" for kind, n in views)
        lines.append(f"| {stage} | {kinds(costs)} | {seen} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--context", type=int, default=1024, help="committed rows")
    parser.add_argument("--write", action="store_true", help="write the pages in results/")
    args = parser.parse_args()
    rules = metal_costs.__doc__.split("\n\n", 1)[1]
    sections = [
        "# Launches of a round on Metal, counted in its graph\n\n"
        "By `python benchmarks/launches.py --write`; nothing was run, and no time was measured. "
        f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}; one sequence, greedy, "
        f"{args.context} committed rows, the drafter's own block size.\n\n{rules}"
    ]
    modelled = {}
    for name, sizes in NAMES.items():
        pair = load(sizes)
        block = pair.drafter.block_size
        rounds = {
            path: round_costs(pair, block, args.context, fused=path == "our kernels")
            for path in ("plain MLX", "our kernels")
        }
        by_block = {
            size: round_costs(pair, size, args.context, fused=True) for size in (1, *BLOCK_SIZES)
        }
        plain = [c for costs in by_block[1].values() for c in costs]
        sections += [
            stage_table(f"{name}, block of {block}", rounds, plain),
            commit_table(rounds, commit_by_layer(pair, block, args.context)),
            "The whole round with our kernels:\n\n" + kind_table(rounds["our kernels"]),
        ]
        if sizes is not None:
            modelled[name] = by_block
        pair.release()
    text = "\n\n".join(sections) + "\n"
    print(text)
    if args.write:
        folder = HERE / "results"
        folder.mkdir(exist_ok=True)
        (folder / "launches.md").write_text(text)
        conditions = (
            f"Greedy, one sequence, {args.context} committed rows, with this project's kernels."
        )
        (folder / "roofline.md").write_text(page(modelled, conditions))


if __name__ == "__main__":
    main()
