"""Runs a compiled kernel in a process of its own and reads what it found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import KernelError

_SECONDS = 120
_SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
    "TSAN_OPTIONS": "halt_on_error=1:report_thread_leaks=0:history_size=2",
}
# What a sanitizer prints, and the check that it means.
_SANITIZER_FINDINGS = (
    ("WARNING: ThreadSanitizer: data race", "race"),
    ("ERROR: AddressSanitizer", "address"),
    ("runtime error:", "undefined"),
)


@dataclass(frozen=True)
class Argument:
    """A buffer of a kernel.

    Attributes:
        name: Its name in the kernel.
        size: Its size in bytes.
        content: What it starts with; None starts it as NaN.
        output: Whether the kernel writes it.
    """

    name: str
    size: int
    content: bytes | None = None
    output: bool = False

    @property
    def kind(self) -> str:
        """The word for it in the manifest."""
        if not self.output:
            return "in"
        return "out" if self.content is None else "inout"


class Process:
    """A kernel and its arguments, to be run under one schedule or several.

    Args:
        executable: The compiled kernel.
        arguments: Its buffers, in order.
        scratch: A folder for the arguments' bytes.
    """

    def __init__(self, executable: Path, arguments: Sequence[Argument], scratch: Path) -> None:
        self._executable = executable
        self._buffers = [(a, scratch / f"{i}.bin") for i, a in enumerate(arguments)]
        self._manifest = scratch / "manifest"
        for argument, path in self._buffers:
            if not argument.output:
                path.write_bytes(argument.content)

    def run(
        self, grid: Sequence[int], threadgroup: Sequence[int], schedule: int, seed: int = 1
    ) -> list[bytes]:
        """Runs the kernel over the grid and returns its outputs' bytes.

        Raises:
            KernelError: When a check of the runtime or of a sanitizer fails.
        """
        lines = [
            f"grid {' '.join(map(str, grid))}",
            f"threadgroup {' '.join(map(str, threadgroup))}",
            f"schedule {schedule} {seed}",
            f"workers {os.cpu_count() or 1}",
        ]
        for argument, path in self._buffers:
            if argument.kind == "inout":
                path.write_bytes(argument.content)
            lines.append(f"{argument.kind} {argument.size} {argument.name} {path}")
        self._manifest.write_text("\n".join(lines) + "\n")
        self._execute()
        return [path.read_bytes() for argument, path in self._buffers if argument.output]

    def _execute(self) -> None:
        command = [str(self._executable), str(self._manifest)]
        done = _call(command)
        if "ThreadSanitizer: unexpected memory mapping" in done.stderr and shutil.which("setarch"):
            # Some systems randomize addresses more than the sanitizer's layout has room for.
            done = _call(["setarch", "-R", *command])
        if done.returncode:
            raise _error(done.returncode, done.stderr)


def _call(command: list[str]) -> subprocess.CompletedProcess:
    # A library that is preloaded into the tests would come before the sanitizers', which they
    # refuse.
    inherited = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env={**inherited, **_SANITIZER_OPTIONS},
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise KernelError("hang", f"the kernel did not end in {_SECONDS} s") from error


def _error(status: int, output: str) -> KernelError:
    found = re.search(r"emulator: \[([\w-]+)\] (.*)", output, re.DOTALL)
    if found:
        return KernelError(found[1], found[2].strip())
    for words, check in _SANITIZER_FINDINGS:
        if words in output:
            return KernelError(check, output[output.index(words) :][:4000])
    return KernelError("crash", f"exit status {status}: {output[:4000]}")
