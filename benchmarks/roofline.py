"""A model of a round on Apple GPUs: what its bytes and operations must take at the least.

Nothing here was measured. A launch takes the longer of its bytes at the chip's full bandwidth and
its operations at the full rate of its arithmetic units.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from metal_costs import Cost

TAUS = range(2, 9)

Rounds = Mapping[int, Mapping[str, list[Cost]]]
"""By block size, what a round's stages cost; a block of one is a plain step."""

TILE = 32
"""Rows that MLX's tiled products compute at the least."""


@dataclass(frozen=True)
class Chip:
    """An Apple GPU.

    Attributes:
        name: as Apple calls it, with its GPU cores.
        bandwidth: memory bandwidth in GB/s.
        cores: GPU cores.
        mhz: their clock.
        source: of the bandwidth and of the clock.
    """

    name: str
    bandwidth: float
    cores: int
    mhz: int
    source: str

    @property
    def tflops(self) -> float:
        """Peak of the arithmetic units: 128 lanes a core, two operations a lane and cycle."""
        return self.cores * 128 * 2 * self.mhz / 1e6


_CLOCKS = "clock: hmc-tech.com"
CHIPS = (
    Chip("M1 Max, 32 cores", 400, 32, 1296, f"Apple, October 2021; {_CLOCKS}"),
    Chip("M2 Ultra, 76 cores", 800, 76, 1398, f"Apple, June 2023; {_CLOCKS}"),
    Chip("M3 Max, 40 cores", 400, 40, 1398, f"Apple, October 2023; {_CLOCKS}"),
    Chip("M4, 10 cores", 120, 10, 1470, f"Apple, May 2024; {_CLOCKS}"),
    Chip("M4 Pro, 20 cores", 273, 20, 1678, "Apple, October 2024; clock taken to be the M4 Max's"),
    Chip("M4 Max, 40 cores", 546, 40, 1678, f"Apple, October 2024; {_CLOCKS}"),
    Chip("M5, 10 cores", 153, 10, 1740, f"Apple, October 2025; {_CLOCKS}"),
    Chip("M5 Max, 40 cores", 614, 40, 1740, "Apple, March 2026; clock taken to be the M5's"),
)

HEAD = """\
# Roofline of a round: a model, not a measurement

No Mac has run any of this. The tables are computed by `python benchmarks/launches.py --write` from
the graph of a round (see [launches.md](launches.md)) and the figures of the chips below. A launch
takes the longer of

* its bytes at the chip's full memory bandwidth, and
* its operations at the full rate of the arithmetic units (128 lanes a core, two
  operations a lane and cycle).

Real kernels reach neither, launches cost time of their own, and the chip may throttle; so these are
lower bounds of the times, and no bound at all of the speedup. The matrix units of the M5 family
are left out, because Apple does not publish their rate: its computation-bound times can be shorter.

The speedup is τ plain steps over draft + verify + accept + commit. τ depends on the drafter and the
text and is no result of this page. The last columns, "even τ", are the τ at which a round of that
block size costs as much as the plain steps that it replaces.

Each pair has two tables. In the first every product computes its own rows and reads its weights
once. In the second, MLX's products of 16 rows compute 32, because that is the tile of MLX 0.32's
kernels for so many rows: it is the more cautious table. Blocks of 4 and 8 run on other kernels,
which read weights more than once, and are not modelled there.
"""


def seconds(costs: Iterable[Cost], chip: Chip, tile: int = 1) -> float:
    """The least time of these launches.

    Args:
        costs: of the primitives.
        chip: that runs them.
        tile: rows that a product of more than one row is rounded up to.
    """
    total = 0.0
    for cost in costs:
        flops = cost.flops
        if cost.rows > 1:
            flops = flops * -(-cost.rows // tile) * tile / cost.rows
        total += max(cost.bytes / (chip.bandwidth * 1e9), flops / (chip.tflops * 1e12))
    return total


def page(pairs: Mapping[str, Rounds], conditions: str) -> str:
    """The roofline page.

    Args:
        pairs: what the rounds of each pair cost, by its name.
        conditions: one sentence on context and kernels.
    """
    lines = [HEAD, conditions, "", "| chip | GB/s | TFLOP/s | source |", "|---|---|---|---|"]
    lines += [f"| {c.name} | {c.bandwidth:g} | {c.tflops:.1f} | {c.source} |" for c in CHIPS]
    for name, rounds in pairs.items():
        for tile, what in ((1, "every product its own rows"), (TILE, f"tiles of {TILE} rows")):
            title = f"## {name}, block of {max(rounds)}, {what} (model)"
            lines += ["", title, "", *_table(rounds, tile)]
    return "\n".join(lines) + "\n"


def _table(rounds: Rounds, tile: int) -> list[str]:
    blocks = [b for b in rounds if b > 1 and (tile == 1 or b == max(rounds))]
    head = ["modelled chip", *(f"{stage} ms" for stage in ("plain step", *rounds[1]))]
    head += [f"speedup, τ={tau}" for tau in TAUS] + [f"even τ, block {b}" for b in blocks]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for chip in CHIPS:
        parts = {
            block: [seconds(costs, chip, tile) for costs in stages.values()]
            for block, stages in rounds.items()
        }
        step, full = sum(parts[1]), parts[max(rounds)]
        cells = [f"{1e3 * t:.2f}" for t in (step, *full)]
        cells += [f"{tau * step / sum(full):.2f}" for tau in TAUS]
        cells += [f"{sum(parts[b]) / step:.2f}" for b in blocks]
        lines.append(f"| {chip.name} | {' | '.join(cells)} |")
    return lines
