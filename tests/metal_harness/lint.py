"""Reads a kernel with clang's front end, which Apple's Metal compiler is built on.

The C++ emulation cannot tell address spaces apart. Here ``device``, ``constant`` and
``threadgroup`` are real ones, which do not convert, and vectors are native. Nothing is compiled.
"""

from __future__ import annotations

import re
from pathlib import Path

from .translate import INSTANTIATION, THREADGROUP_DECLARATION, Signature

_DECLARATIONS = Path(__file__).resolve().parent / "cpp" / "lint" / "metal_lint.h"
_WARNINGS = (
    "-Wall -Wextra -Wshadow -Wdouble-promotion "
    "-Wno-unknown-attributes -Wno-ignored-attributes -Wno-unused -Wno-unused-parameter "
    "-Wno-c++17-extensions -Wno-undefined-inline -Wno-undefined-internal -Wno-sign-compare"
)
_NAME = "kernel.metal"


def lint(source: str) -> list[str]:
    """Returns what is wrong with a kernel's text, one line for each finding.

    Args:
        source: The Metal text that MLX makes for a call.
    """
    return [*_accidental_parameters(source), *_diagnostics(source)]


def _accidental_parameters(source: str) -> list[str]:
    """Parameters that MLX added because their name is a part of some other word, or in a comment.

    They are harmless until two of them clash, and a sign of an input's name chosen too short.
    """
    signature = Signature.of(source)
    body = re.sub(r"//[^\n]*|/\*.*?\*/", "", signature.body, flags=re.DOTALL)
    return [
        f"MLX passes '{name}', which the kernel does not use: its name is inside another one"
        for _, name, attribute in signature.parameters
        if (attribute != "buffer" or re.search(r"_(shape|strides|ndim)$", name))
        and not re.search(rf"\b{name}\b", body)
    ]


def _diagnostics(source: str) -> list[str]:
    from clang import cindex  # the package libclang, in the extra `test`

    arguments = ["-x", "c++", "-std=c++14", "-ffreestanding", "-nostdinc"]
    arguments += ["-include", str(_DECLARATIONS)]
    # The machine that runs the lint should not matter; this one has half and bfloat.
    arguments += ["--target=aarch64-unknown-linux-gnu", *_WARNINGS.split()]
    unit = cindex.Index.create().parse(
        _NAME, args=arguments, unsaved_files=[(_NAME, _as_cpp(source))]
    )
    return [
        f"{d.location.file}:{d.location.line}: {d.spelling}"
        for d in unit.diagnostics
        if d.severity >= cindex.Diagnostic.Warning
    ]


def _as_cpp(source: str) -> str:
    """Bends what clang takes only from Metal: locals in an address space, vector constructors."""
    text = INSTANTIATION.sub(
        lambda m: f"\ntemplate decltype({m['instance']}) {m['instance']};\n", source
    )
    text = THREADGROUP_DECLARATION.sub(lambda m: f"static {m.group()}", text)
    text = re.sub(r"\bvec<(\w+), ?(\d)>\(", r"lint_vector<vec<\1, \2>>::of(", text)
    return text.replace("[[kernel]] ", "")
