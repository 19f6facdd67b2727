"""Compiles a few lines of the headers' dialect, and runs them over arrays as the backends run their kernels."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpu_envs.backend.cupy import import_cupy
from gpu_envs.backend.host import HostKernels
from gpu_envs.backend.nvrtc import architecture_of, machine_code
from gpu_envs.backend.program import ELEMENTARY, NUMBERS, PORTABLE, header_text
from gpu_envs.backend.toolchain import build

Array = np.ndarray[Any, np.dtype[Any]]
Function = Callable[..., list[Array]]

C_TYPES = {"float32": "float", "float64": "double", "uint32": "u32", "uint64": "u64", "int32": "int"}


def source(real: str, inputs: Sequence[str], outputs: Sequence[str], body: str, more: Sequence[str] = ()) -> str:
    """A kernel that reads `in0[i]`, `in1[i]`... and writes `out0[i]`... for every i; dtypes are NumPy's."""
    fields = [f"const {C_TYPES[kind]}* in{j};" for j, kind in enumerate(inputs)]
    fields += [f"{C_TYPES[kind]}* out{j};" for j, kind in enumerate(outputs)]
    names = [f"in{j}" for j in range(len(inputs))] + [f"out{j}" for j in range(len(outputs))]
    aliases = " ".join(f"auto* {name} = call.{name};" for name in names)
    text = f"""
struct Call {{ Index count; {" ".join(fields)} }};
KERNEL(kernel_apply, Call) {{
    {aliases}
    FOR_EACH_ENV(env, call.count) {{
        FOR_EACH_LANE(k, env) {{
            const Index i = env.index(k);
            {body}
        }}
    }}
}}
"""
    headers = [
        *map(header_text, PORTABLE),
        f"using real = {C_TYPES[real]};",
        *map(header_text, (*NUMBERS, ELEMENTARY, *more)),
    ]
    return "\n".join(["namespace gpu_envs {", *headers, text, "}"])


def compiled(
    real: str, inputs: Sequence[str], outputs: Sequence[str], body: str, device: str = "cpu",
    flush: bool | None = None, more: Sequence[str] = (),
) -> Function:  # fmt: skip
    """The kernel as a function of NumPy arrays, all of one length or `[n, width]`; it returns a list of arrays.

    `more`: further headers. `flush`: whether denormals count as zero; None: as the backends do it, in float32 only.
    """
    text = source(real, inputs, outputs, body, more)
    pointers = [(f"in{j}", ctypes.c_void_p) for j in range(len(inputs))]
    pointers += [(f"out{j}", ctypes.c_void_p) for j in range(len(outputs))]
    call_type = type("Call", (ctypes.Structure,), {"_fields_": [("count", ctypes.c_longlong), *pointers]})
    xp: Any
    if device == "cpu":
        xp, kernels = np, HostKernels(build(text, "test"), 1, real == "float32" if flush is None else flush)
    else:
        xp = import_cupy()
        module = xp.cuda.function.Module()
        architecture = architecture_of(divmod(int(xp.cuda.Device().compute_capability), 10))
        module.load(machine_code(text, "test", architecture))
        function = module.get_function("kernel_apply")

    def launch(call: ctypes.Structure, count: int) -> None:
        if device == "cpu":
            kernels.bind("apply", call, count)(0)
        else:
            # an array of one element, as large as the struct: CuPy passes such a one by value
            argument = np.frombuffer(bytes(call), dtype=np.dtype((np.void, ctypes.sizeof(call))), count=1)
            function(((count + 127) // 128,), (128,), (argument,))

    def apply(*arrays: Array, out_shape: tuple[int, ...] | None = None) -> list[Array]:
        given = [xp.asarray(np.ascontiguousarray(a, dtype=kind)) for a, kind in zip(arrays, inputs, strict=True)]
        made = [xp.zeros(out_shape or given[0].shape, kind) for kind in outputs]
        call = call_type()
        call.count = given[0].shape[0]
        for j, array in enumerate(given):
            setattr(call, f"in{j}", _address(array))
        for j, array in enumerate(made):
            setattr(call, f"out{j}", _address(array))
        launch(call, call.count)
        return [array if device == "cpu" else xp.asnumpy(array) for array in made]

    return apply


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
