"""Everything that only a Mac can tell, in one run.

    python benchmarks/mac.py [--out FOLDER] [--skip tests,bandwidth,kernels,round]

Runs the kernel tests on the GPU, times every kernel variant and a round by stage, and writes
mac-report.json and mac-report.md, which hold nothing private and are meant to be sent back. It
takes some minutes. A part that cannot run is named in the report, with the reason; no number is
ever filled in for it. The project must be installed with its tests: ``pip install -e '.[test]'``.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mac_kernels
import mlx.core as mx
from common import HERE, prompts, stages
from graph import kernels_chosen
from mac_report import markdown

import dflash_mlx
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.kernels.metal import on_metal
from dflash_mlx.measure import run
from dflash_mlx.measure.arms import mlx_lm_arms, our_arms
from dflash_mlx.measure.machine import describe_machine, output_of

PARTS = ("tests", "bandwidth", "kernels", "round")
PROMPTS = 3
BANDWIDTHS = {
    "M1 Max, 32 cores": 400,
    "M2 Ultra, 76 cores": 800,
    "M3 Max, 40 cores": 400,
    "M4, 10 cores": 120,
    "M4 Pro, 20 cores": 273,
    "M4 Max, 40 cores": 546,
    "M5, 10 cores": 153,
    "M5 Max, 40 cores": 614,
}
"""GB/s that Apple publishes, by chip and GPU cores: one chip's name may stand for several."""


@dataclass
class Part:
    """One part of the report.

    Attributes:
        result: what was measured, or None.
        why_not: why nothing was.
    """

    result: Any = None
    why_not: str | None = None


def machine() -> dict[str, Any]:
    """Chip, memory and versions. Nothing that names the owner."""
    found = describe_machine()
    displays = output_of("system_profiler", "SPDisplaysDataType")
    cores = re.search(r"Total Number of Cores: (\d+)", displays)
    cores = int(cores[1]) if cores else None
    return found | {
        "gpu_cores": cores,
        "published_gb_per_s": published_bandwidth(found["chip"], cores),
        "gpu": mx.device_info() if on_metal() else None,
    }


def published_bandwidth(chip: str, cores: int | None) -> float | None:
    """GB/s that Apple names for this chip with so many GPU cores, if we know it."""
    return BANDWIDTHS.get(f"{chip.removeprefix('Apple ')}, {cores} cores")


def kernel_tests(paths: Sequence[str] = ("tests/metal",)) -> dict[str, Any]:
    """Run the kernel tests, on the GPU that there is.

    Raises:
        RuntimeError: pytest could not run them.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "tests.xml")
        command = [sys.executable, "-m", "pytest", "-m", "metal", "-q", f"--junitxml={log}", *paths]
        done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True)
        if not log.is_file() or done.returncode not in (0, 1):
            raise RuntimeError(
                f"pytest could not run the tests: {(done.stdout + done.stderr)[-500:]}"
            )
        cases = list(ET.parse(log).getroot().iter("testcase"))
    bad = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = sum(c.find("skipped") is not None for c in cases)
    return {
        "passed": len(cases) - len(bad) - skipped,
        "skipped": skipped,
        "failed": [f"{c.get('classname')}.{c.get('name')}" for c in bad],
        "output": "" if done.returncode == 0 else done.stdout[-4000:],
    }


def one_round(
    model: str | None, draft_model: str | None, tokens: int = 128, times: int = 15
) -> dict[str, Any]:
    """A round of this pair or the embedded one: its stages, and whole texts beside plain's.

    Args:
        model: the target, or None.
        draft_model: its drafter, or None.
        tokens: length of the texts.
        times: how often a stage is timed.
    """
    pair, tokenizer = dflash_mlx.load(model, draft_model)
    with pair:
        size, chosen = pair.drafter.block_size, list(prompts(tokenizer).items())[:PROMPTS]
        ways = {"as chosen": nullcontext()}
        if on_metal():
            ways["plain MLX"] = kernels_chosen(False)
        times_of: dict[str, dict[str, float]] = {}
        for name, way in ways.items():
            with way:
                times_of[name] = stages(pair, chosen[0][1], size, times)
        arms = our_arms(pair, tokenizer, Sampling(), [size])
        arms += mlx_lm_arms(pair.model, tokenizer, Sampling())
        return {
            "model": model or "the embedded pair",
            "draft_model": draft_model,
            "block_size": size,
            "kernels": pair.drafter.kernels(size),
            "stage_seconds": times_of,
            "generations": [
                asdict(run.measure(arm, run.Case(name, "", 0, prompt), tokens, 0)[0])
                for name, prompt in chosen
                for arm in arms
            ],
        }


def measure(work: Callable[[], Any], skip: bool, needs_gpu: bool) -> Part:
    """Run a part, or say why it has not run. No error of one part stops the others."""
    if skip:
        return Part(why_not="left out with --skip")
    if needs_gpu and not on_metal():
        return Part(why_not="there is no Metal GPU here")
    try:
        return Part(work())
    except Exception as error:  # what fails on a machine we have never seen is what we must know
        return Part(why_not=f"{type(error).__name__}: {error}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the two files")
    parser.add_argument("--skip", default="", help=f"parts to leave out, of {','.join(PARTS)}")
    parser.add_argument("--model", help="target for the round; the embedded pair if not given")
    parser.add_argument("--draft-model", help="its drafter")
    args = parser.parse_args(arguments)
    skipped = set(filter(None, args.skip.split(",")))
    if unknown := skipped - set(PARTS):
        parser.error(f"--skip knows {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    if bool(args.model) != bool(args.draft_model):
        parser.error("--model and --draft-model go together")

    works: dict[str, tuple[Callable[[], Any], bool]] = {
        "tests": (kernel_tests, True),
        "bandwidth": (mac_kernels.bandwidth, True),
        "kernels": (mac_kernels.kernels, True),
        "round": (lambda: one_round(args.model, args.draft_model), False),
    }
    report: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "parts": {},
    }
    for name, (work, needs_gpu) in works.items():
        print(f"{name} …", file=sys.stderr, flush=True)
        report["parts"][name] = asdict(measure(work, name in skipped, needs_gpu))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "mac-report.json").write_text(json.dumps(report, indent=1, default=str) + "\n")
    (args.out / "mac-report.md").write_text(markdown(report))
    print(f"Wrote mac-report.json and mac-report.md in {args.out.resolve()}.")


if __name__ == "__main__":
    main()
