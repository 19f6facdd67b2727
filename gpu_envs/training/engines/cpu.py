"""Policies on a CPU: perceptrons, distributions and losses in kernels that pass over tiles of rows."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from gpu_envs.backend import open_backend
from gpu_envs.backend.launcher import MemberValue
from gpu_envs.backend.program import Program, headers, joined, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.codegen import SingleLayout
from gpu_envs.codegen.single_source import before_drivers, structs
from gpu_envs.training.algorithms import A2C, PPO
from gpu_envs.training.algorithms.base import LOG_STD_RANGE, PolicyGradient
from gpu_envs.training.engines.base import (
    PERCEPTRON_SETTINGS,
    POLICY_LOSS_SETTINGS,
    TOTALS,
    ActRequest,
    KernelEngine,
    Minibatch,
    PolicyNetworks,
    ValueRequest,
    make_optimiser,
)
from gpu_envs.training.engines.functions import table
from gpu_envs.training.engines.kernels import (
    ACT_MEMBERS,
    SCALE,
    VALUES_MEMBERS,
    Linear,
    load_filled,
    nets_of,
    scale_values,
)
from gpu_envs.training.engines.ops import LOSS_MEMBERS, SUMS, float_struct, head_settings, mask_bytes
from gpu_envs.training.engines.optimiser import Adam
from gpu_envs.training.networks import Case, Perceptron, SharedPerceptron, drop_outward_gradient
from gpu_envs.training.observations import Scale, update_max_magnitude
from gpu_envs.training.process.group import Group

MAX_LAYERS = 3
"""Maximum number of hidden layers."""

MAX_WIDTH = 256
"""Maximum units of a hidden layer; wider ones are as fast in torch."""

_MAX_PARTS = 16
"""Maximum number of partial sums of a gradient, on which its bits depend."""

_TILE = 64
"""Rows of a tile: ``LANES`` of the dialect on a CPU."""

_PADDING = 16
"""Numbers after each partial sum: the longest vector."""

_ACTIVATIONS = {
    "tanh": ("rational_tanh(x)", "1.0f - y * y"),
    "relu": ("maximum(x, 0.0f)", "y > 0.0f ? 1.0f : 0.0f"),
    "elu": ("x > 0.0f ? x : exp(minimum(x, 0.0f)) - 1.0f", "y > 0.0f ? 1.0f : y + 1.0f"),
    "silu": ("x * sigmoid(x)", "sigmoid(x) * (1.0f + x * (1.0f - sigmoid(x)))"),
    "gelu": ("x * normal_cumulative(x)", "normal_cumulative(x) + x * normal_density(x)"),
}
"""Activations at x, and their slopes from the input x and the output y, in C++."""

_MASK = ("const u8*?", "action_mask", ("rows", "outputs"))

_CALLS: dict[str, Struct] = {
    "act": float_struct("SampleCall", *ACT_MEMBERS, ("float*?", "values", ("rows",)), _MASK),
    "values": float_struct(
        "ValuesCall", *(member for member in VALUES_MEMBERS if member[1] not in ("largest", "alive"))
    ),
    "update": float_struct(
        "LossCall",
        *LOSS_MEMBERS,
        ("const float*", "flat", ("parameters",)),
        ("const float*", "observations", ("samples", "features")),
        ("const u8*?", "action_mask", ("samples", "outputs")),
        *SCALE,
        ("float*", "values", ("rows",)),
        ("float*", "grad_values", ("rows",)),
        ("float*", "sums", (len(SUMS), "rows")),
        ("Index", "parts"),
        ("float*", "partials"),
    ),
    "reduce": float_struct(
        "ReduceCall", ("Index", "parts"), ("const float*", "partials"), ("float*", "gradient", ("parameters",))
    ),
}


@final
class CpuPolicyEngine(KernelEngine):
    """Runs actors and critics of up to three hidden layers."""

    name = "cpu"
    learns = PolicyGradient
    device = "cpu"
    algorithms = (PPO, A2C)
    settings = (*POLICY_LOSS_SETTINGS, *PERCEPTRON_SETTINGS, "layer_norm", "shared_trunk")
    kernels = (
        ("acting", "kernel_act of cpu/policy.cuh, with the values"),
        ("values", "kernel_values of cpu/policy.cuh"),
        ("gradient", "kernel_update and kernel_reduce of cpu/policy.cuh"),
        ("step", "kernel_collect and kernel_adam of common/optimise.cuh"),
    )

    def exceeded(self, case: Case) -> str:
        hidden = case.network.hidden
        if case.split is not None:
            return "agents share observations"
        if len(hidden) > MAX_LAYERS or max(hidden) > MAX_WIDTH:
            return f"hidden layers are {hidden}, not up to {MAX_LAYERS} of up to {MAX_WIDTH} units"
        return "the precision is bf16" if case.network.precision == "bf16" else ""

    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> PolicyNetworks:
        assert isinstance(module, Perceptron | SharedPerceptron)
        return CpuPolicyNetworks(case, module, make_optimiser(case, module, group), scale)


def _network_text(case: Case, nets: Sequence[Sequence[Linear]], log_std: int, means: int, count: int) -> str:
    """C++ text of a network's sizes, activation, and places in the flat buffer of ``count`` parameters."""
    activation, slope = _ACTIVATIONS[case.network.activation]
    low, high = (f"float({bound!r})" for bound in LOG_STD_RANGE)
    value_column = means if len(nets) == 1 else 0
    hidden = case.network.hidden

    def per_layer(name: str, attribute: str) -> str:
        return table(name, [[getattr(layer, attribute) for layer in layers] for layers in nets])

    lines = [
        f"constexpr int NETS = {len(nets)}, LAYERS = {len(hidden) + 1}, FEATURES = {case.features};",
        f"constexpr int INPUTS = {nets[0][0].columns}, COUNT = {count}, MEANS = {means}, LOG_STD = {log_std};",
        f"constexpr int VALUE_NET = {len(nets) - 1}, VALUE_COLUMN = {value_column};",
        f"constexpr float LOG_STD_LOW = {low}, LOG_STD_HIGH = {high};",
        f"constexpr bool SLOPE_OF_INPUT = {str('y' not in slope).lower()};",
        f"FN constexpr int width_of(int l) {{ constexpr int t[] = {{{', '.join(map(str, hidden))}}}; return t[l]; }}",
        *(per_layer(f"{name}s_at", name) for name in ("weight", "gain", "shift")),
        per_layer("biases_at", "bias"),
        per_layer("outputs_of", "rows"),
        f"FN float activation(float x) {{ return {activation}; }}",
        f"FN float slope([[maybe_unused]] float x, [[maybe_unused]] float y) {{ return {slope}; }}",
    ]
    return "\n".join(lines)


def _parts(text: str, *losses: str) -> list[str | tuple[str, str]]:
    """The parts of a program up to ``act_on_tile``; ``losses``: headers of losses, which only learning needs."""
    common = (f"training/common/{part}.cuh" for part in ("distributions", "sampler", *losses))
    network = ("training/cpu/activations.cuh", ("network", text), "training/cpu/network.cuh", "training/cpu/act.cuh")
    return [*common, *network]


@final
class CpuPolicyNetworks(PolicyNetworks):
    """Runs an actor and a critic; gradients are deterministic, for any number of threads."""

    acts_with_value = True

    def __init__(self, case: Case, module: Perceptron | SharedPerceptron, optimiser: Adam, scale: Scale) -> None:
        """Starts to compile the kernels; the optimiser has all parameters."""
        self.optimiser: Adam = optimiser
        self._module, (nets, log_std) = module, nets_of(module)
        flat, means = optimiser.flat, case.head.parameters - case.head.log_stds
        self._text = _network_text(case, nets, log_std, means, len(flat))
        self._settings = head_settings(case.head)
        sizes = {**self._settings.sizes, "features": case.features, "parameters": len(flat)}
        settings = dataclasses.replace(self._settings, sizes=sizes, weight=max(1, len(flat) // 100))
        program = program_of((*_parts(self._text, "policy_loss"), "training/cpu/policy.cuh"), _CALLS, settings)
        self._partials: Final = flat.new_zeros(_MAX_PARTS, len(flat) + _PADDING)
        self._inputs: Final = {"flat": flat, **scale_values(scale)}
        self._kernels: Final = load_filled(
            open_backend("cpu", case.threads),
            [program],
            **self._inputs,
            gradient=optimiser.gradient,
            partials=self._partials.data_ptr(),
        )
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}

    def act(self, request: ActRequest) -> None:
        mask = mask_bytes(request.action_mask)
        members = {**request.members, "values": request.values, "action_mask": mask}
        self._kernels["act"].launch(len(request.observations), **members)

    def act_and_step_program(self, layout: SingleLayout) -> Program:
        """The program of the kernel ``act_and_step``, which runs a horizon of policy and environment in one launch."""
        declared, act_call = structs(layout), _CALLS["act"]
        call = Struct.of(
            "ActAndStepCall", layout.real, (declared["StepCall"], "step"), (act_call, "act"), ("int", "horizon")
        )
        aliases = (f"using {name} = {kind};" for name, kind in self._settings.types.items())
        settings = "\n".join([self._settings.prologue, *aliases, act_call.cpp()])
        acting = [
            ("acting", f"namespace acting {{\n{settings}"),
            *(headers(part)[0] if isinstance(part, str) else part for part in _parts(self._text)),
            ("acting", "}\nusing acting::SampleCall;"),
        ]
        parts = [
            *before_drivers(layout, declared, acting),
            *headers("drivers/one_step.cuh"),
            ("generated", call.cpp()),
            *headers("training/common/advance.cuh", "training/cpu/act_and_step.cuh"),
        ]
        name, calls = f"{layout.spec.id}-act_and_step", {"act_and_step": call.ctype()}
        return Program(name=name, source=joined(parts), calls=calls, flush_denormals=True)

    def act_with(self, call: Any, request: ActRequest) -> None:
        """Sets the members of ``call``, a ``SampleCall``, for a kernel that acts and steps; launches nothing."""
        for name, value in (self._inputs | request.members | {"values": request.values}).items():
            setattr(call, name, value.data_ptr() if isinstance(value, Tensor) else value)

    def values(self, request: ValueRequest) -> None:
        members = request.members
        largest, alive = members.pop("largest"), members.pop("alive")
        if request.largest is not None:
            update_max_magnitude(request.largest, request.observations, request.alive)
        del largest, alive
        self._kernels["values"].launch(len(request.values), **members)

    def gradient(self, minibatch: Minibatch, totals: Tensor) -> None:
        count = minibatch.count
        values, sums = self._rows.setdefault(count, (totals.new_empty(2, count), totals.new_empty(TOTALS, count)))
        parts = min(_MAX_PARTS, -(-count // _TILE))
        mask = mask_bytes(minibatch.samples.action_mask)
        scratch: dict[str, MemberValue] = {"values": values[0], "grad_values": values[1], "sums": sums, "parts": parts}
        self._kernels["update"].launch(parts * _TILE, **minibatch.members, action_mask=mask, **scratch)
        self._kernels["reduce"].launch(len(self.optimiser.flat), parts=parts)
        if (log_std := self._module.log_std) is not None:
            first = log_std.storage_offset()
            gradient = self.optimiser.gradient[first : first + len(log_std)]
            gradient.copy_(drop_outward_gradient(self._module, log_std, gradient))
        torch.sum(sums, 1, out=totals)
