"""Turns MLX's Metal text into a C++ file for the shim.

The text stays as it is, but for two things: declarations of threadgroup memory become references
to shared storage, and MLX's explicit instantiation becomes a call. Lines keep their numbers.
The helpers that MLX puts in front of every kernel (``elem_to_loc`` and the like) are not there.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from .errors import KernelError

# A type (perhaps a template's instance), then names with dimensions. The lookbehind leaves out
# pointers, casts and parameters, where `threadgroup` qualifies and declares nothing.
THREADGROUP_DECLARATION = re.compile(
    r"""(?<![\w&*,(<])threadgroup\s+
    (?P<type>(?:metal\s*::\s*)?[A-Za-z_]\w*(?:\s*<[^;<>]*(?:<[^;<>]*>[^;<>]*)*>)?)\s+
    (?P<names>[A-Za-z_]\w*\s*(?:\[[^;]*?\]\s*)*(?:,\s*[A-Za-z_]\w*\s*(?:\[[^;]*?\]\s*)*)*);""",
    re.VERBOSE,
)
INSTANTIATION = re.compile(
    r"\ntemplate \[\[host_name\(.*?\)\]\] \[\[kernel\]\] decltype\((?P<instance>.*?)\) .*?;\n",
    re.DOTALL,
)
_KERNEL = re.compile(r"\[\[kernel\]\] void (\w+)\(\n(.*?)\)\s*\{\n", re.DOTALL)
_PARAMETER = re.compile(r"(.*?)\s*(\w+) \[\[(\w+)(?:\(\d+\))?\]\]$", re.DOTALL)

# Metal's attributes in terms of the running thread (cpp/msl/abi.h).
_ATTRIBUTES = {
    **{
        attribute: f"msl::uint3_of(msl::self->{attribute.removeprefix('thread_')})"
        for attribute in (
            "thread_position_in_grid",
            "thread_position_in_threadgroup",
            "threadgroup_position_in_grid",
            "threads_per_threadgroup",
            "dispatch_threads_per_threadgroup",
            "threads_per_grid",
            "threadgroups_per_grid",
        )
    },
    "grid_size": "msl::uint3_of(msl::self->threads_per_grid)",
    "grid_origin": "uint3(0)",
    "thread_index_in_threadgroup": "msl::self->index_in_threadgroup",
    "thread_index_in_simdgroup": "msl::self->index_in_simdgroup",
    "thread_index_in_quadgroup": "(msl::self->index_in_simdgroup & 3)",
    "simdgroup_index_in_threadgroup": "msl::self->simdgroup_index",
    "quadgroup_index_in_threadgroup": "(msl::self->index_in_threadgroup / 4)",
    "simdgroups_per_threadgroup": "msl::self->simdgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup": "msl::self->simdgroups_per_threadgroup",
    "threads_per_simdgroup": "32u",
    "thread_execution_width": "32u",
}


@dataclass(frozen=True)
class Translation:
    """A kernel as C++.

    Attributes:
        name: The kernel's name, made by MLX.
        buffers: The names of its buffer arguments, in order.
        cpp: The C++ text.
    """

    name: str
    buffers: tuple[str, ...]
    cpp: str


@dataclass(frozen=True)
class Signature:
    """What MLX wrote around a kernel's body.

    Attributes:
        name: The kernel's name, made by MLX.
        parameters: Its parameters as (type, name, attribute).
        body: The text that follows.
    """

    name: str
    parameters: tuple[tuple[str, str, str], ...]
    body: str

    @classmethod
    def of(cls, source: str) -> Signature:
        """Reads a kernel's text."""
        found = _KERNEL.search(source)
        parameters = [_PARAMETER.match(p.strip()).groups() for p in found[2].split(",\n")]
        return cls(found[1], tuple(parameters), source[found.end() :])


def translate(source: str) -> Translation:
    """Translates a kernel, as MLX generates it."""
    signature = Signature.of(source)
    instance = INSTANTIATION.search(source)
    arguments, buffers = [], []
    for type_, parameter, attribute in signature.parameters:
        if attribute == "buffer":
            arguments.append(_buffer_argument(type_, len(buffers)))
            buffers.append(parameter)
        elif attribute in _ATTRIBUTES:
            arguments.append(_ATTRIBUTES[attribute])
        else:
            raise KernelError("compile", f"the emulator does not know the attribute {attribute}")
    called = instance["instance"] if instance else signature.name
    cpp = (
        "#include <metal_stdlib>\n"
        "using namespace metal;\n"
        f'#line 1 "{signature.name}.metal"\n'
        f"{_with_shared_storage(INSTANTIATION.sub(_same_lines, source))}\n"
        f"void msl::entry() {{ {called}({', '.join(arguments)}); }}\n"
    )
    return Translation(signature.name, tuple(buffers), cpp)


def _buffer_argument(type_: str, index: int) -> str:
    if type_.endswith("&"):
        return f"*({type_[:-1]}*)msl::buffers[{index}]"
    return f"({type_})msl::buffers[{index}]"


def _same_lines(match: re.Match) -> str:
    return "\n" * match.group().count("\n")


def _with_shared_storage(source: str) -> str:
    """Replaces every declaration of threadgroup memory, each variable with a number of its own."""
    numbers = itertools.count()

    def replace(match: re.Match) -> str:
        variables = re.findall(r"(\w+)\s*((?:\[[^;]*?\]\s*)*)(?:,|$)", match["names"])
        text = ""
        for variable, dimensions in variables:
            number = next(numbers)
            text += (
                f"typedef {match['type']} msl_shared_{number}{dimensions.strip()}; "
                f"auto& {variable} = "
                f"msl::threadgroup_variable<msl_shared_{number}>({number}, __LINE__); "
            )
        return text + _same_lines(match)

    return THREADGROUP_DECLARATION.sub(replace, source)
