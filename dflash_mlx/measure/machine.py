"""What the numbers come from: machine, memory, versions, models. Nothing that names the owner."""

import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import mlx.core as mx

from ..loading.embedded import TARGET_NAME
from ..loading.hub import find_local

PACKAGES = ("mlx", "mlx-lm", "dflash-mlx")
GB = 1e9


def chip() -> str:
    """The processor's name."""
    name = ""
    if sys.platform == "darwin":
        name = output_of("sysctl", "-n", "machdep.cpu.brand_string")
    elif Path("/proc/cpuinfo").is_file():
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        name = found[1] if found else ""
    return name or platform.processor() or platform.machine()


def total_memory() -> int:
    """Bytes of memory that the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory() -> int | None:
    """Bytes that programs could still take without pushing others out, or None if not known."""
    if sys.platform == "darwin":
        # Inactive and speculative pages are given up when somebody needs them.
        pages = r"^Pages (?:free|inactive|speculative):\s+(\d+)"
        counts = re.findall(pages, output_of("vm_stat"), re.MULTILINE)
        return os.sysconf("SC_PAGE_SIZE") * sum(map(int, counts)) if counts else None
    meminfo = Path("/proc/meminfo")
    text = meminfo.read_text() if meminfo.is_file() else ""
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else None


def system() -> str:
    """The operating system and its version."""
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    return f"{platform.system()} {platform.release()}"


def describe_machine() -> dict[str, object]:
    """Everything about the machine that a measurement depends on."""
    device = mx.device_info()
    return {
        "chip": chip(),
        "architecture": platform.machine(),
        "memory_gb": round(total_memory() / GB, 1),
        "cores": os.cpu_count(),
        "system": system(),
        "device": str(mx.default_device()),
        "gpu": device.get("device_name") if mx.default_device().type == mx.gpu else None,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def describe_model(
    name: str | None, revision: str | None = None, default: str = TARGET_NAME
) -> dict[str, object]:
    """A model as it was named, and the commit that it was resolved to where that can be told.

    Args:
        name: a folder or a Hub id as it was given, or None for one of the default pair's.
        revision: branch, tag or commit as it was given.
        default: the name of that one.
    """
    folder = find_local(name, revision) if name else None
    # The Hub's cache keeps each commit in a folder of its own: snapshots/<commit>.
    commit = folder.name if folder is not None and folder.parent.name == "snapshots" else None
    return {"name": name or default, "revision": revision, "commit": commit}


def output_of(*command: str) -> str:
    """What a command of the system prints, or nothing if it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
