"""``dflash-mlx tune``: measure what rounds cost here, for block sizes that pay."""

import argparse

from ..engine.acceptance import FIRST_ACCEPTANCE
from ..engine.block_size import BlockController
from ..engine.costs import GREEDY, CostTable
from ..generation.auto_size import tune
from .arguments import add_model_options, load_pair
from .progress import Steps

# Seconds of silence.
PATIENCE = 2.0
PARTS = ("round", "draft", "verify", "rest")
# Of a column of the table, in characters: two contexts fit a terminal's 80.
WIDTH = 9


def tuning_progress(shown: bool = True) -> Steps:
    """A bar, once measuring takes longer than a moment."""
    return Steps("Measuring what rounds cost on this machine", shown=shown, patience=PATIENCE)


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register the ``tune`` command."""
    parser = subparsers.add_parser(
        "tune",
        description=(
            "Measure what rounds of each block size cost on this machine for a pair, print it, and "
            "store it for --block-size auto. That measures by itself at the first use of a pair; "
            "run this when the machine was busy then, or has changed."
        ),
    )
    parser.set_defaults(run=run)
    add_model_options(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print and store.

    Raises:
        UserError: a model cannot be loaded, or there is no drafter.
    """
    model, _ = load_pair(args)
    table = tune(model, tuning_progress(), again=True)
    print(describe(table))
    # Where it is not or cannot be stored, there is a warning.
    if model.cost_file is not None and model.cost_file.path.is_file():
        print(f"Stored in {model.cost_file.path}")
    return 0


def describe(table: CostTable) -> str:
    """The table for a person, and what it means for the first rounds of a text."""
    lines = [
        "Milliseconds of a round by block size, after so many tokens:",
        "    " + "".join(str(context).rjust(4 * WIDTH) for context in table.contexts),
        "size" + "".join(part.rjust(WIDTH) for part in PARTS * len(table.contexts)),
    ]
    nothing = [0.0] * len(table.contexts)
    for size in table.sizes:
        alone = (table.drafts.get(size, nothing), table.verifies.get(size, nothing))
        cells = [
            cell
            for whole, draft, verify in zip(table.rounds[GREEDY][size], *alone, strict=True)
            for cell in (whole, draft, verify, max(whole - draft - verify, 0.0))
        ]
        lines.append(f"{size:4}" + "".join(f"{1e3 * x:{WIDTH}.2f}" for x in cells))
    lines.append(
        "Size 1 is plain decoding. Draft and verify are timed alone; "
        "rest is what a round takes beyond them."
    )
    return "\n".join([*lines, *_starts(table)])


def _starts(table: CostTable) -> list[str]:
    acceptance = FIRST_ACCEPTANCE if table.acceptance is None else table.acceptance
    known = "assumed" if table.acceptance is None else "seen so far"
    lines = []
    for context in table.contexts:
        size = BlockController(table).choose(context)
        what = "plain decoding" if size == 1 else f"block size {size}"
        lines.append(
            f"A text of {context} tokens starts with {what} (acceptance {acceptance:.2f}, {known})."
        )
    return lines
