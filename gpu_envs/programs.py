"""Makes a program of headers that need no spec: what is compiled, and the structs that its kernels take."""

from collections.abc import Mapping, Sequence
from typing import Final, final

from gpu_envs.codegen import Program, header_text
from gpu_envs.codegen.layout import joined
from gpu_envs.codegen.structs import Struct


@final
class Shape:
    """What is compiled into a program beside its headers."""

    def __init__(self, prologue: str, staging_bytes: int = 0, weight: int = 1) -> None:
        """Describes it.

        Args:
            prologue: C++ that stands before the headers.
            staging_bytes: Shared memory of a GPU that a thread needs.
            weight: How many steps of a small environment an element is worth, roughly.
        """
        self.prologue: Final = prologue
        self.staging_bytes: Final = staging_bytes
        self.weight: Final = weight


def program_of(headers: Sequence[str], calls: Mapping[str, Struct], shape: Shape | None = None) -> Program:
    """The source of the kernels of one header, and their structs; arguments as of ``Compiler.compile``."""
    shape = shape or Shape("")
    name = headers[-1].removesuffix(".cuh")
    structs = "\n".join(call.cpp() for call in calls.values())
    source = joined(
        [
            ("portable.cuh", header_text("portable.cuh")),
            ("prologue", "using real = float;"),
            ("math.cuh", header_text("math.cuh")),
            ("philox.cuh", header_text("philox.cuh")),
            ("shape", f"{shape.prologue}\n{structs}"),
            *((header, header_text(header)) for header in headers),
        ]
    )
    return Program(
        name=name,
        source=source,
        calls={kernel: call.ctype() for kernel, call in calls.items()},
        flush_denormals=True,
        staging_bytes=shape.staging_bytes,
        weight=shape.weight,
    )
