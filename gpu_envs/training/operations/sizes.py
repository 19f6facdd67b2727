"""Sizes that C++ works out, for Python: they are read from a program that has nothing else.

NVRTC compiles it in a tenth of a second, without a device, and its text is kept in the cache folder.
"""

import re
from collections.abc import Mapping, Sequence

from gpu_envs.backend.nvrtc import machine_code
from gpu_envs.backend.program import KernelSettings, program_of
from gpu_envs.backend.toolchain import whole


def sizes_of(
    parts: Sequence[str | tuple[str, str]], settings: KernelSettings, sizes: Mapping[str, str]
) -> dict[str, int]:
    """The values of some expressions behind those parts of a program.

    Args:
        parts: Headers and texts, as of ``program_of``, without kernels.
        settings: What is compiled into them.
        sizes: Constant expressions in C++, by names.
    """
    lines = [f'extern "C" {{ __device__ u64 size_{name} = u64({value}); }}' for name, value in sizes.items()]
    program = program_of([*parts, ("sizes", "\n".join(lines))], {}, settings)
    ptx = whole(machine_code(program.source, program.name, "compute_80")) or b""
    return {name: int(value or 0) for name, value in re.findall(r"\bsize_(\w+)(?: = (\d+))?;", ptx.decode())}
