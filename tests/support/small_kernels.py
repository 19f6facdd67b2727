"""Compiles and runs a few lines of the kernels' dialect, and compares the results with NumPy."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gpu_envs.backend.cuda import architecture_of
from gpu_envs.backend.cupy import import_cupy
from gpu_envs.backend.host import HostKernels
from gpu_envs.backend.nvrtc import machine_code
from gpu_envs.backend.program import DIALECT_HEADERS, ELEMENTARY_HEADER, MATH_HEADERS, header_text
from gpu_envs.backend.toolchain import build

Array = np.ndarray[Any, np.dtype[Any]]
Function = Callable[..., list[Array]]

needs_wide_long_double = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 60, reason="this machine's long double is no wider than its double"
)

C_TYPES = {"float32": "float", "float64": "double", "uint32": "u32", "uint64": "u64", "int32": "int"}


def source(real: str, inputs: Sequence[str], outputs: Sequence[str], body: str, more: Sequence[str] = ()) -> str:
    """Returns a kernel's source that reads `in0[i]`, `in1[i]`... and writes `out0[i]`... for every i; NumPy dtypes."""
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
        *map(header_text, DIALECT_HEADERS),
        f"using real = {C_TYPES[real]};",
        *map(header_text, (*MATH_HEADERS, ELEMENTARY_HEADER, *more)),
    ]
    return "\n".join(["namespace gpu_envs {", *headers, text, "}"])


def compile_kernel(
    real: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    body: str,
    device: str = "cpu",
    flush: bool | None = None,
    more: Sequence[str] = (),
) -> Function:
    """Returns the kernel as a function of NumPy arrays, all of one length or `[n, width]`, to a list of arrays.

    `more`: additional headers. `flush`: whether denormals count as zero; None: as in the backends, only in float32.
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
        architecture = architecture_of(divmod(int(xp.cuda.Device().compute_capability), 10))
        function = xp.RawModule(path=str(machine_code(text, "test", architecture))).get_function("kernel_apply")

    def launch(call: ctypes.Structure, count: int) -> None:
        if device == "cpu":
            kernels.bind("apply", call, count)(0)
        else:
            # CuPy passes an array of one element, as large as the struct, by value
            argument = np.frombuffer(bytes(call), dtype=np.dtype((np.void, ctypes.sizeof(call))), count=1)
            function(((count + 127) // 128,), (128,), (argument,))

    def apply(*arrays: Array, out_shape: tuple[int, ...] | None = None) -> list[Array]:
        input_arrays = [xp.asarray(np.ascontiguousarray(a, dtype=kind)) for a, kind in zip(arrays, inputs, strict=True)]
        output_arrays = [xp.zeros(out_shape or input_arrays[0].shape, kind) for kind in outputs]
        call = call_type()
        call.count = input_arrays[0].shape[0]
        for j, array in enumerate(input_arrays):
            setattr(call, f"in{j}", _address(array))
        for j, array in enumerate(output_arrays):
            setattr(call, f"out{j}", _address(array))
        launch(call, call.count)
        return [array if device == "cpu" else xp.asnumpy(array) for array in output_arrays]

    return apply


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def max_ulp_error(got: Array, exact: Any, real: str) -> Any:
    """Returns the maximum error, in units in the last place of the exact value."""
    unit = np.spacing(np.abs(exact.astype(real))).astype(np.longdouble)
    return np.max(np.abs(got.astype(np.longdouble) - exact) / unit)


def random_bits(real: str, count: int, seed: int = 0) -> Array:
    """Returns numbers with random bits, including infinities, NaNs and denormals."""
    bits = np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)
    return (bits >> np.uint64(32)).astype(np.uint32).view(real) if real == "float32" else bits.view(real)


def assert_bits_equal(name: str, x: Array, here: Array, there: Array) -> None:
    """Fails unless the results of two devices have the same bits or are both NaN."""
    bits = f"u{here.itemsize}"
    same = (here.view(bits) == there.view(bits)) | (np.isnan(here) & np.isnan(there))
    at = np.flatnonzero(~same)[:3]
    assert same.all(), f"{name}: {x[at]} give {here[at]} here, {there[at]} there"


def philox(counters: Array, key: tuple[int, int]) -> Array:
    """Returns the random words of counters `[n, 4]`, by the algorithm of the Philox paper."""
    words, k = counters.astype(np.uint64), [np.uint64(key[0]), np.uint64(key[1])]
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        a, b = words[:, 0] * np.uint64(0xD2511F53), words[:, 2] * np.uint64(0xCD9E8D57)
        words = np.stack(
            [(b >> half) ^ words[:, 1] ^ k[0], b & mask, (a >> half) ^ words[:, 3] ^ k[1], a & mask], axis=1
        )
        k = [(k[0] + np.uint64(0x9E3779B9)) & mask, (k[1] + np.uint64(0xBB67AE85)) & mask]
    return words.astype(np.uint32)
