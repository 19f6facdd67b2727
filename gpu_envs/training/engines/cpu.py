"""Policies on a CPU: perceptrons, distributions and losses in kernels that pass over tiles of rows."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from gpu_envs.backend import open_backend
from gpu_envs.backend.host import TILE
from gpu_envs.backend.launcher import MemberValue
from gpu_envs.backend.program import Program, headers, joined, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.codegen import SingleLayout
from gpu_envs.codegen.single_source import before_drivers, structs
from gpu_envs.training.algorithms import A2C, PPO, PQN
from gpu_envs.training.algorithms.base import LOG_STD_RANGE, PolicyGradient
from gpu_envs.training.engines.base import (
    LEARNER_SETTINGS,
    PERCEPTRON_SETTINGS,
    POLICY_LOSS_SETTINGS,
    STEP_KERNELS,
    TOTALS,
    ActRequest,
    KernelEngine,
    Minibatch,
    PolicyNetworks,
    ValueRequest,
    make_optimiser,
)
from gpu_envs.training.engines.functions import Forward, FunctionQValues, Functions, table
from gpu_envs.training.engines.kernels import (
    ACT_MEMBERS,
    SCALE,
    VALUES_MEMBERS,
    Linear,
    ParameterOffsets,
    layers_of,
    load_filled,
    nets_of,
    scale_values,
)
from gpu_envs.training.engines.ops import LOSS_MEMBERS, SUMS, float_struct, head_settings, mask_bytes
from gpu_envs.training.engines.optimiser import Adam
from gpu_envs.training.engines.torch import CHOOSER
from gpu_envs.training.networks import Case, Perceptron, QNetwork, SharedPerceptron, drop_outward_gradient
from gpu_envs.training.observations import Rows, Scale, SplitRows, update_max_magnitude
from gpu_envs.training.process.group import Group

MAX_LAYERS = 3
"""Maximum number of hidden layers."""

MAX_WIDTH = 256
"""Maximum units of a hidden layer."""

MAX_FEATURES = 512
"""Maximum features of an observation."""

MAX_CENTRAL_FEATURES = 1024
"""Maximum features of a central critic."""

_MAX_PARTS = 16
"""Maximum number of partial sums of a gradient. Another number changes its bits."""

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

_PARTS = (("Index", "parts"), ("float*", "partials"))
_CENTRAL = (
    ("const float*?", "central", ("groups", "central_features")),
    *(("const float*?", f"central_{name}", ("central_features",)) for name in ("mean", "inverse")),
)
"""Observations of a central critic, and their normalisation."""
_FLAT = ("const float*", "flat", ("parameters",))
_MASK = ("const u8*?", "action_mask", ("rows", "outputs"))

_ACT_CALL = float_struct("SampleCall", *ACT_MEMBERS, ("float*?", "values", ("rows",)), _MASK)
_VALUES = [
    ("const float*?", *member[1:]) if member[1] == "observations" else member
    for member in VALUES_MEMBERS
    if member[1] not in ("largest", "alive")
]
_POLICY_CALLS: dict[str, Struct] = {
    "values": float_struct("ValuesCall", *_VALUES, *_CENTRAL),
    "update": float_struct(
        "LossCall",
        *LOSS_MEMBERS,
        _FLAT,
        ("const float*", "observations", ("samples", "features")),
        ("const u8*?", "action_mask", ("samples", "outputs")),
        *SCALE,
        *_CENTRAL,
        ("float*", "values", ("rows",)),
        ("float*", "grad_values", ("rows",)),
        ("float*", "sums", (len(SUMS), "rows")),
        *_PARTS,
    ),
}
_ROWS = (("Index", "rows"), _FLAT, ("const float*", "observations", ("rows", "features")), *SCALE)
_FUNCTION_CALLS: dict[str, Struct] = {
    "outputs": float_struct("OutputsCall", *_ROWS, ("float*", "outputs", ("rows", "outputs"))),
    "backward": float_struct("BackwardCall", *_ROWS, ("const float*", "grad_outputs", ("rows", "outputs")), *_PARTS),
}
_REDUCE_CALL = float_struct("ReduceCall", *_PARTS, ("float*", "gradient", ("parameters",)))


@final
class CpuPolicyEngine(KernelEngine):
    """Runs actors and critics of up to three hidden layers."""

    name = "CPU actor-critic"
    of_populations = True
    horizon_kernel = "kernel_act_and_step of cpu/act_and_step.cuh"
    learns = PolicyGradient
    device = "cpu"
    algorithms = (PPO, A2C)
    settings = (*POLICY_LOSS_SETTINGS, *PERCEPTRON_SETTINGS, "layer_norm", "shared_trunk")
    central_critics = True
    kernels = (
        ("acting", "kernel_act of cpu/acting.cuh, with the values unless the critic sees more than the actor"),
        ("values", "kernel_values of cpu/policy.cuh"),
        ("gradient", "kernel_update of cpu/policy.cuh, and kernel_reduce of cpu/reduce.cuh"),
        STEP_KERNELS,
    )

    def exceeded(self, case: Case) -> str:
        return _limit(case)

    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> PolicyNetworks:
        assert isinstance(module, Perceptron | SharedPerceptron)
        return CpuPolicyNetworks(case, module, make_optimiser(case, module, group), scale)


@final
class CpuQEngine(KernelEngine):
    """Runs Q networks of up to three hidden layers."""

    name = "CPU Q network"
    of_populations = True
    learns = PQN
    device = "cpu"
    algorithms = (PQN,)
    settings = (*LEARNER_SETTINGS, *PERCEPTRON_SETTINGS, "layer_norm")
    kernels = (
        ("acting", f"kernel_outputs of cpu/functions.cuh, {CHOOSER}"),
        ("values", "kernel_outputs of cpu/functions.cuh, and kernel_greedy_values of off_policy/pqn.cuh"),
        ("gradient", "kernel_backward of cpu/functions.cuh; kernel_q_loss of off_policy/pqn.cuh for the loss"),
        STEP_KERNELS,
    )

    def exceeded(self, case: Case) -> str:
        return _limit(case)

    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> PolicyNetworks:
        assert isinstance(module, QNetwork)
        optimiser = make_optimiser(case, module, group)
        return FunctionQValues(case, module, scale, optimiser, CpuFunctions(case, module, optimiser))


def _limit(case: Case) -> str:
    """A sentence on the first limit of the kernels that a case exceeds; empty: none."""
    hidden = case.network.hidden
    if case.split is not None:
        return "agents share observations"
    if len(hidden) > MAX_LAYERS or max(hidden) > MAX_WIDTH:
        return f"hidden layers are {hidden}, and the kernels take up to {MAX_LAYERS} of up to {MAX_WIDTH} units"
    if case.features > MAX_FEATURES:
        return f"observations have {case.features} features, more than {MAX_FEATURES}"
    if case.central is not None and case.central.features > MAX_CENTRAL_FEATURES:
        return f"the critic sees {case.central.features} features, more than {MAX_CENTRAL_FEATURES}"
    return ""


def _network_text(case: Case, nets: Sequence[Sequence[Linear]], log_std: int, means: int, count: int) -> str:
    """C++ text of a network's sizes, activation, and places in the flat buffer of ``count`` parameters."""
    activation, slope = _ACTIVATIONS[case.network.activation]
    low, high = (f"float({bound!r})" for bound in LOG_STD_RANGE)
    value_column = means if len(nets) == 1 else 0
    shared, agents = case.central or (0, 0)
    hidden, of_input = case.network.hidden, re.search(r"\by\b", slope) is None

    def per_layer(name: str, attribute: str) -> str:
        return table(name, [[getattr(layer, attribute) for layer in layers] for layers in nets])

    lines = [
        f"constexpr int NETS = {len(nets)}, LAYERS = {len(hidden) + 1}, FEATURES = {case.features};",
        f"constexpr int COUNT = {count}, MEANS = {means}, LOG_STD = {log_std};",
        f"constexpr int VALUE_NET = {len(nets) - 1}, VALUE_COLUMN = {value_column};",
        f"constexpr int AGENTS = {agents}, CENTRAL = {shared};",
        f"constexpr float LOG_STD_LOW = {low}, LOG_STD_HIGH = {high};",
        f"constexpr bool SLOPE_OF_INPUT = {str(of_input).lower()};",
        *(per_layer(f"{name}s_at", name) for name in ("weight", "gain", "shift")),
        per_layer("biases_at", "bias"),
        per_layer("outputs_of", "rows"),
        per_layer("inputs_of", "columns"),
        f"FN float activation(float x) {{ return {activation}; }}",
        f"FN float slope([[maybe_unused]] float x, [[maybe_unused]] float y) {{ return {slope}; }}",
    ]
    return "\n".join(lines)


def _parts(text: str, *losses: str) -> list[str | tuple[str, str]]:
    """The parts of a program up to ``act_on_tile``; ``losses``: headers of losses, which only learning needs."""
    common = (f"training/common/{part}.cuh" for part in ("distributions", "sampler", *losses))
    activations, *network = (f"training/cpu/{part}.cuh" for part in ("activations", "network", "act"))
    return [*common, "training/cpu/vectors.cuh", activations, ("network", text), *network]


@final
class _Kernels:
    """The kernels of one program for a policy's networks, and partial sums of gradients."""

    def __init__(
        self,
        case: Case,
        nets: Sequence[Sequence[Linear]],
        optimiser: Adam,
        scale: Scale,
        program: tuple[str, Mapping[str, Struct], Sequence[str]],
        log_std: int = -1,
    ) -> None:
        """Starts to compile; ``program``: the header of the kernels, their calls, and headers of losses."""
        name, calls, losses = program
        flat, head = optimiser.flat, case.head
        self.text: Final = _network_text(case, nets, log_std, head.parameters - head.log_stds, len(flat))
        self.settings: Final = head_settings(head)
        self.inputs: Final = {"flat": flat, **scale_values(scale)}
        sizes = {**self.settings.sizes, "features": case.features, "parameters": len(flat)}
        sizes["central_features"] = 0 if case.central is None else case.central.features
        self.weight: Final = max(1, len(flat) // 100)  # of a row, in steps of a small environment
        settings = dataclasses.replace(self.settings, sizes=sizes, weight=self.weight)
        if "act" in calls:
            parts, filled = _parts(self.text), self.inputs
        else:
            settings = dataclasses.replace(settings, structs=[_ACT_CALL])  # act.cuh names it
            parts, calls = [*_parts(self.text, *losses), "training/cpu/reduce.cuh"], {**calls, "reduce": _REDUCE_CALL}
            self._partials = flat.new_empty(_MAX_PARTS, len(flat) + _PADDING)
            sums = {"gradient": optimiser.gradient, "partials": self._partials.data_ptr()}
            filled = {**self.inputs, **sums}
        program_text = program_of([*parts, f"training/cpu/{name}.cuh"], calls, settings)
        self.kernels: Final = load_filled(open_backend("cpu", case.threads), [program_text], **filled)
        self._gradient: Final = optimiser.gradient

    def learn(self, name: str, members: Mapping[str, MemberValue], rows: int) -> None:
        """Launches a kernel that sums the gradient of ``rows`` rows in parts, and the kernel that adds the parts."""
        if rows == 0:
            self._gradient.zero_()
            return
        parts = min(_MAX_PARTS, -(-rows // TILE))
        self.kernels[name].launch(rows, parts=parts, **members)
        self.kernels["reduce"].launch(-(-len(self._gradient) // TILE), parts=parts)


@final
class CpuPolicyNetworks(PolicyNetworks):
    """Runs an actor and a critic; gradients are deterministic, for any number of threads."""

    def __init__(self, case: Case, module: Perceptron | SharedPerceptron, optimiser: Adam, scale: Scale) -> None:
        """Starts to compile the kernels; the optimiser has all parameters."""
        self.optimiser: Adam = optimiser
        self.acts_with_value = case.central is None
        self._module, (nets, log_std) = module, nets_of(module)
        make = functools.partial(_Kernels, case, nets, optimiser, scale, log_std=log_std)
        self._cpu: Final = make(("policy", _POLICY_CALLS, ("policy_loss",)))
        # compiled at first use: with act_and_step it is not needed
        self._acting: Final = functools.cache(lambda: make(("acting", {"act": _ACT_CALL}, ())).kernels["act"])
        self._scratch: dict[int, dict[str, Tensor]] = {}

    def act(self, request: ActRequest) -> None:
        more: dict[str, MemberValue] = {"values": request.values, "action_mask": mask_bytes(request.action_mask)}
        members = request.members | more
        self._acting().launch(len(request.actions), **members)

    def act_and_step_program(self, layout: SingleLayout) -> Program:
        """The program of the kernel ``act_and_step``, which runs a horizon of policy and environment in one launch."""
        declared, act_call, head = structs(layout), _ACT_CALL, self._cpu.settings
        members = (declared["StepCall"], "step"), (act_call, "act"), ("int", "horizon")
        call = Struct.of("ActAndStepCall", layout.real, *members)
        aliases = (f"using {name} = {kind};" for name, kind in head.types.items())
        settings = "\n".join([head.prologue, *aliases, act_call.cpp()])
        acting = [
            ("acting", f"namespace acting {{\n{settings}"),
            *(headers(part)[0] if isinstance(part, str) else part for part in _parts(self._cpu.text)),
            ("acting", "}\nusing acting::SampleCall;"),
        ]
        parts = [
            *before_drivers(layout, declared, acting),
            *headers("drivers/one_step.cuh"),
            ("generated", call.cpp()),
            *headers("training/common/advance.cuh", "training/cpu/act_and_step.cuh"),
        ]
        name, calls = f"{layout.spec.id}-act_and_step", {"act_and_step": call.ctype()}
        return Program(name=name, source=joined(parts), calls=calls, flush_denormals=True, weight=self._cpu.weight)

    def begin_acting(self) -> None:
        """Starts to compile the kernel of ``act``, for runs that do not act and step in one launch."""
        self._acting()

    def act_with(self, call: Any, request: ActRequest) -> None:
        """Sets the members of ``call``, a ``SampleCall``, for a kernel that acts and steps; launches nothing."""
        for name, value in (self._cpu.inputs | request.members | {"values": request.values}).items():
            setattr(call, name, value.data_ptr() if isinstance(value, Tensor) else value)

    def values(self, request: ValueRequest) -> None:
        if request.largest is not None:
            update_max_magnitude(request.largest, request.observations, request.alive)
        rows = request.observations
        if isinstance(rows, SplitRows):
            request = dataclasses.replace(request, observations=rows.individual)
        members = {name: value for name, value in request.members.items() if name not in ("largest", "alive")}
        if isinstance(rows, SplitRows):
            members["observations"] = None
        self._cpu.kernels["values"].launch(len(request.values), **members, **self._central(rows))

    def _central(self, rows: Rows | None) -> dict[str, MemberValue]:
        """Returns the values of ``_CENTRAL``, which are None without a central critic."""
        shared, scale = rows.shared if isinstance(rows, SplitRows) else None, scale_values(self.critic_scale)
        values = {"central": shared, "central_mean": scale["mean"], "central_inverse": scale["inverse"]}
        return {**values, "groups": 0 if shared is None else len(shared)}

    def gradient(self, minibatch: Minibatch, totals: Tensor) -> None:
        count = minibatch.count
        if count not in self._scratch:
            memory = totals.new_empty(2 + TOTALS, count)
            self._scratch[count] = {"values": memory[0], "grad_values": memory[1], "sums": memory[2:]}
        scratch, mask = self._scratch[count], mask_bytes(minibatch.samples.action_mask)
        central = self._central(minibatch.critic_observations)
        self._cpu.learn("update", {**minibatch.members, **scratch, **central, "action_mask": mask}, count)
        if (log_std := self._module.log_std) is not None:
            first = log_std.storage_offset()
            gradient = self.optimiser.gradient[first : first + len(log_std)]
            gradient.copy_(drop_outward_gradient(log_std, gradient))
        torch.sum(scratch["sums"], 1, out=totals)


@final
class CpuFunctions(Functions):
    """A Q network, for any number of rows per call."""

    def __init__(self, case: Case, module: QNetwork, optimiser: Adam) -> None:
        layers = layers_of(module.actor, ParameterOffsets(module.parameters()))
        self._cpu: Final = _Kernels(case, (layers,), optimiser, None, ("functions", _FUNCTION_CALLS, ()))
        self._inputs = optimiser.flat

    def outputs(self, inputs: Tensor, outputs: Tensor) -> None:
        self._inputs, rows = inputs, len(inputs)
        self._cpu.kernels["outputs"].launch(rows, rows=rows, observations=inputs, outputs=outputs.view(rows, -1))

    def backward(
        self, grad_outputs: Tensor, forward: Forward = None, grad_inputs: Tensor | None = None, weights: bool = True
    ) -> None:
        if forward is not None or grad_inputs is not None or not weights:
            raise ValueError("these functions only write the gradients of their weights, for the last outputs")
        rows = len(self._inputs)
        members = {"rows": rows, "observations": self._inputs, "grad_outputs": grad_outputs.view(rows, -1)}
        self._cpu.learn("backward", members, rows)
