"""A step of critics and one of an actor by a batch of few rows, each in one launch of a GPU."""

import dataclasses
from collections.abc import Mapping

from gpu_envs.backend.program import ELEMENTARY, Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.operations.actor_critic import losses_text
from gpu_envs.training.operations.ops import SUMS
from gpu_envs.training.operations.optimiser import STEP_MEMBERS
from gpu_envs.training.operations.perceptrons import ACTIVATIONS, Form
from gpu_envs.training.operations.sizes import sizes_of

MOST = 256
"""Columns of a layer."""

_MOST_OUTPUTS = 64

_OF_BOTH = (
    ("Index", "rows"),
    ("const float*", "observations", ("rows", "features")),
    ("const u8*", "found", ("rows",)),
    ("const float*", "normal", ("rows", "width")),
    ("const float*", "critics", ("critics_count",)),
    ("float*", "log_temperature", (1,)),
    ("float*", "sums", (len(SUMS), "rows")),
    ("int", "alone"),
    ("float", "tau"),
    ("float*", "squares_of_blocks", ("launched",)),
    *STEP_MEMBERS,
)
"""What both learn by: where processes learn together, which is not ``alone``, the gradients are all that is found."""

CRITICS_CALL = Struct.of(
    "CriticsCall",
    "float",
    *_OF_BOTH,
    ("const float*", "actions", ("rows", "width")),
    ("const float*", "returns", ("rows",)),
    ("const float*", "discounts", ("rows",)),
    ("const float*", "next_observations", ("rows", "features")),
    ("float*", "targets", ("critics_count",)),
    ("const float*", "next_actor", ("actor_count",)),
    ("float", "noise"),
    ("float", "most"),
    ("float*", "inputs", ("rows", "inputs")),
    ("float*", "by_said", ("nets", "rows")),
    ("float*", "kept", ("of_critics", "rows", MOST)),
    ("float*", "slopes", ("of_critics", "rows", MOST)),
)

ACTOR_CALL = Struct.of(
    "ActorCall",
    "float",
    *_OF_BOTH,
    ("const float*", "actor", ("actor_count",)),
    ("float", "target_entropy"),
    ("float*", "by_outputs", ("rows", "outputs")),
    ("float*", "by_temperature", ("rows",)),
    ("float*?", "target", ("actor_count",)),
    ("float*?", "temperature_message", (1 + len(SUMS),)),
    ("float*?", "temperature_means", (1,)),
    ("float*?", "temperature_squares", (1,)),
    ("float*?", "temperature_norm", (1,)),
    ("i64*?", "temperature_steps", (1,)),
    ("float*", "kept", ("hidden", "rows", MOST)),
    ("float*", "slopes", ("hidden", "rows", MOST)),
)


def fits(features: int, width: int) -> bool:
    """Whether observations and actions of such lengths have room."""
    return features + width <= MOST and 2 * width <= _MOST_OUTPUTS


def blocks_of(actor: Form, critics: Form) -> int:
    """The blocks of a launch: such that all are there at once."""
    return _sizes(actor, critics)["launched"]


def program(actor: Form, critics: Form, processes: int) -> Program:
    """The source, where so many processes learn together."""
    sizes, calls = _sizes(actor, critics), {"critics": CRITICS_CALL, "actor": ACTOR_CALL}
    features, inputs, nets, hidden = actor.sizes[0], critics.sizes[0], len(critics.nets), len(actor.sizes) - 2
    settings = dataclasses.replace(
        _settings(actor, critics),
        sizes={
            "features": features,
            "width": inputs - features,
            "nets": nets,
            "inputs": inputs,
            "outputs": actor.sizes[-1],
            "hidden": hidden,
            "of_critics": nets * hidden,
            "critics_count": critics.count,
            "actor_count": actor.count,
            "launched": blocks_of(actor, critics),
            "processes": processes,
        },
        grid=Grid(threads=sizes["threads"], replicas=1, shared_bytes=sizes["shared"], together=True),
    )
    kernels = "\n".join(
        f"KERNEL_OF_CLUSTERS(kernel_{name}, {call.name}, THREADS, BLOCKS) {{ {name}(call); }}"
        for name, call in calls.items()
    )
    return program_of([*_parts(actor, critics), ("small-batch", kernels)], calls, settings)


def _sizes(actor: Form, critics: Form) -> Mapping[str, int]:
    sizes = {"shared": "SHARED_BYTES", "threads": "THREADS", "launched": "CLUSTER * 8 * BLOCKS"}
    return sizes_of(_parts(actor, critics), _settings(actor, critics), sizes)


def _settings(actor: Form, critics: Form) -> KernelSettings:
    features, width = actor.sizes[0], critics.sizes[0] - actor.sizes[0]
    stochastic = actor.sizes[-1] > width
    return KernelSettings(prologue=losses_text(features, width, len(critics.nets), stochastic=stochastic))


def _parts(actor: Form, critics: Form) -> list[str | tuple[str, str]]:
    """Everything but the kernels."""

    def table(name: str, arguments: str, values: list[list[int]]) -> str:
        rows = ", ".join(f"{{{', '.join(map(str, row))}}}" for row in values)
        place = "[net][l]" if "net" in arguments else "[0][l]"
        return (
            f"FN constexpr int {name}({arguments}) {{ constexpr int t[{len(values)}][{len(values[0])}] = {{{rows}}}; "
            f"return t{place}; }}"
        )

    forth, slope = ACTIVATIONS[actor.activation]
    text = [
        f"constexpr int HIDDEN = {len(actor.sizes) - 2}, SUMS = {len(SUMS)}, DIVERGENCE = {SUMS.index('kl')};",
        f"constexpr int MOST = {MOST}, OUTS = {_MOST_OUTPUTS};",
        table("width_of", "int l", [list(actor.sizes[1:-1])]),
        table("critic_weights", "int net, int l", [[layer.weight for layer in net] for net in critics.nets]),
        table("critic_biases", "int net, int l", [[layer.bias for layer in net] for net in critics.nets]),
        table("actor_weights", "int l", [[layer.weight for layer in actor.nets[0]]]),
        table("actor_biases", "int l", [[layer.bias for layer in actor.nets[0]]]),
        f"FN float activation(float x) {{ return {forth}; }}",
        f"FN float slope(float y) {{ return {slope}; }}",
    ]
    return [
        ELEMENTARY,
        "training/common/tensor_core.cuh",
        "training/off_policy/squashed.cuh",
        ("form", "\n".join(text)),
        "training/common/adam.cuh",
        "training/off_policy/small_batch.cuh",
    ]
