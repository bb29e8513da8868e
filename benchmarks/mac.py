"""Everything that only a Mac can tell, in one run.

    python benchmarks/mac.py [--out FOLDER] [--skip tests,bandwidth,kernels,round]

Runs the kernel tests on the GPU, times every kernel variant and a round by stage, and writes
mac-report.json and mac-report.md, which hold nothing private and are meant to be sent back. It
takes some minutes. A part that cannot run is named in the report, with the reason; no number is
ever filled in for it. The project must be installed with its tests: ``pip install -e '.[test]'``.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mac_kernels
import mac_round
import mlx.core as mx
from common import HERE
from mac_report import markdown
from roofline import CHIPS

import dflash_mlx
from dflash_mlx.kernels.metal import on_metal

PARTS = ("tests", "bandwidth", "kernels", "round")


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

    def ask(*command: str) -> str | None:
        try:
            return subprocess.run(
                command, capture_output=True, text=True, check=True
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    chip = cores = None
    if sys.platform == "darwin":
        chip = ask("sysctl", "-n", "machdep.cpu.brand_string")
        displays = ask("system_profiler", "SPDisplaysDataType") or ""
        found = re.search(r"Total Number of Cores: (\d+)", displays)
        cores = int(found[1]) if found else None
    packages = ("mlx", "mlx-lm", "dflash-mlx")
    return {
        "chip": chip,
        "gpu_cores": cores,
        "published_gb_per_s": published_bandwidth(chip, cores),
        "system": f"{platform.system()} {platform.mac_ver()[0] or platform.release()}",
        "device": str(mx.default_device()),
        "gpu": mx.device_info() if on_metal() else None,
        "versions": {name: version(name) for name in packages}
        | {"python": platform.python_version()},
    }


def published_bandwidth(chip: str | None, cores: int | None) -> float | None:
    """GB/s that Apple names for this chip with so many GPU cores, if roofline.py knows it."""
    name = f"{(chip or '').removeprefix('Apple ')}, {cores} cores"
    return next((c.bandwidth for c in CHIPS if c.name == name), None)


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


def one_round(model: str | None, draft_model: str | None) -> dict[str, Any]:
    """A round of this pair, or of the embedded one."""
    pair, tokenizer = dflash_mlx.load(model, draft_model)
    with pair:
        names = {"model": model or "the embedded pair", "draft_model": draft_model}
        return names | mac_round.rounds(pair, tokenizer)


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
