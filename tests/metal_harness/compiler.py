"""Compiles a translated kernel with the runtime and keeps executables by hash."""

from __future__ import annotations

import enum
import functools
import hashlib
import platform
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from .errors import KernelError

CPP = Path(__file__).resolve().parent / "cpp"
_HEADERS = (CPP / "msl", CPP / "include")
_RUNTIME = CPP / "runtime"
_UNUSED_DAYS = 14


class Build(enum.Enum):
    """How a kernel is compiled; the value holds the flags."""

    PLAIN = ("-O2",)
    # Address and undefined behaviour: array bounds, misaligned loads, private arrays.
    ADDRESS = (
        "-O1",
        "-g",
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
        "-fno-sanitize=vptr",
        "-fno-sanitize-recover=undefined",
        "-DMSL_ADDRESS=1",
    )
    # Data races: accesses that no barrier with a memory flag puts in order.
    THREAD = ("-O1", "-g", "-fsanitize=thread", "-DMSL_THREAD=1")


class Compiler:
    """A C++ compiler and a folder of what it has made.

    Args:
        folder: Where executables and objects are kept between runs.
        command: The compiler; by default the first of g++ and clang++ that is installed.
    """

    def __init__(self, folder: Path, command: str | None = None) -> None:
        self.folder = folder
        self.command = command or shutil.which("g++") or shutil.which("clang++")
        folder.mkdir(parents=True, exist_ok=True)

    @functools.cached_property
    def _version(self) -> str:
        if self.command is not None:
            asked = [self.command, "--version"]
            done = subprocess.run(asked, capture_output=True, text=True)
            if done.returncode == 0:  # on macOS there may be a g++ that only says what is missing
                return done.stdout
        raise RuntimeError(
            "The kernel tests need a C++ compiler and found neither g++ nor clang++. "
            "Debian, Ubuntu: sudo apt install g++ (make test does this when it may). "
            "macOS: xcode-select --install."
        )

    def executable(self, cpp: str, build: Build) -> Path:
        """Returns the executable for a kernel's C++ text, compiling it when it is new.

        Raises:
            KernelError: With check ``compile``, when the text does not compile.
        """
        flags = [*self._flags(), *build.value]
        path = self.folder / f"{self._key(cpp, *flags, *self._sources)}.run"
        if path.exists():
            path.touch()  # so that prune() knows it is in use
            return path
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            source, kernel, linked = (Path(scratch, n) for n in ("kernel.cpp", "kernel.o", "run"))
            source.write_text(cpp)
            self._run("compile", [*flags, f"-I{CPP}", f"-I{CPP / 'include'}", "-c", source], kernel)
            sanitize = [f for f in flags if f.startswith("-fsanitize")]
            self._run("link", [*sanitize, kernel, *self._runtime_objects(flags)], linked)
            linked.replace(path)
        return path

    def prune(self) -> None:
        """Removes what no run has used for two weeks."""
        oldest = time.time() - _UNUSED_DAYS * 24 * 3600
        for path in self.folder.iterdir():
            if path.is_file() and path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)

    def _runtime_objects(self, flags: list[str]) -> list[Path]:
        """The runtime, which is never instrumented: only the kernel is to be judged."""
        flags = [f for f in flags if not f.startswith(("-fsanitize", "-fno-sanitize"))]
        objects = []
        for source in sorted(_RUNTIME.glob("*.cpp")):
            path = self.folder / f"{self._key(source.name, *flags, *self._sources)}.o"
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                    made = Path(scratch, "runtime.o")
                    self._run("compile", [*flags, "-fno-builtin", "-c", source], made)
                    made.replace(path)
            path.touch()
            objects.append(path)
        return objects

    def _flags(self) -> list[str]:
        flags = ["-std=c++14", "-w", "-fsigned-char", "-fno-strict-aliasing"]
        # No contraction: results should not depend on what an optimizer merged.
        flags += ["-ffp-contract=off", "-fno-math-errno"]
        # In Metal 0.1 is a float.
        if "clang" in self._version:
            flags += ["-Xclang", "-cl-single-precision-constant"]
            flags += ["-Wno-reserved-user-defined-literal"]  # Metal's 1.0h
        else:
            flags += ["-fsingle-precision-constant"]
        if platform.machine() in ("x86_64", "AMD64"):
            flags += ["-march=native"]  # half conversions and fma as instructions
        return flags

    @functools.cached_property
    def _sources(self) -> list[str]:
        files = [p for d in (*_HEADERS, _RUNTIME) for p in sorted(d.iterdir())]
        # The processor is in the key because of -march=native, should the folder be shared.
        return [self._version, platform.processor(), _cpu_model(), *(p.read_text() for p in files)]

    @staticmethod
    def _key(*parts: str) -> str:
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

    def _run(self, step: str, arguments: list[str | Path], output: Path) -> None:
        command = [self.command, *map(str, arguments), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return
        if step == "link":
            raise RuntimeError(f"{self.command} could not link a kernel:\n{done.stderr[:2000]}")
        raise KernelError("compile", done.stderr[:6000])


def _cpu_model() -> str:
    """The processor's name on Linux, where platform.processor() is often empty."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("model name", "CPU part"))), "")
