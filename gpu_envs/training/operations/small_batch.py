"""A step of critics and one of an actor by a batch of few rows, each in one launch of a GPU."""

from gpu_envs.backend.program import ELEMENTARY, Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.operations.actor_critic import losses_text
from gpu_envs.training.operations.ops import SUMS
from gpu_envs.training.operations.optimiser import STEP_MEMBERS
from gpu_envs.training.operations.perceptrons import ACTIVATIONS, Form

MOST = 256
"""Columns of a layer."""

_MOST_OUTPUTS = 64

CLUSTER = 8
"""Blocks that go with the same rows."""

_THREADS, _ROWS = 256, 16
_STAGED = 256 * (_MOST_OUTPUTS + 32)
"""Numbers of a tile of the weights' gradient, as of the other two, in ``small_batch.cuh``."""

_HALF = 113 * 1024
"""Bytes that leave room for another block, so that all clusters find places, whichever processors a device lacks."""

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
    return CLUSTER * (16 if _shared_bytes(actor, critics) <= _HALF else 8)


def _shared_bytes(actor: Form, critics: Form) -> int:
    """Of a block: the tiles of rows, or of a weights' gradient."""
    hidden, nets, inputs, outputs = len(actor.sizes) - 2, len(critics.nets), critics.sizes[0], actor.sizes[-1]
    of_net = max(1, hidden - 1)
    wholes = max(2 * nets * of_net, (1 + nets) * of_net + (nets if hidden > 2 else 0))
    small = 3 * outputs + 5 * nets + 2 * (inputs - actor.sizes[0])
    row = 2 * (-(-inputs // 8) * 8 + 4) + wholes * (MOST + 20) + (2 * nets + 1) * (MOST // CLUSTER + 4)
    row += (1 + nets) * 8 * 8 + small
    return 4 * max(_STAGED, _ROWS * row)


def program(actor: Form, critics: Form, processes: int, *, stochastic: bool) -> Program:
    """The source, where so many processes learn together."""
    features, width, nets = actor.sizes[0], critics.sizes[0] - actor.sizes[0], len(critics.nets)
    widths, hidden = actor.sizes[1:-1], len(actor.sizes) - 2

    def table(name: str, arguments: str, values: list[list[int]]) -> str:
        rows = ", ".join(f"{{{', '.join(map(str, row))}}}" for row in values)
        place = "[net][l]" if "net" in arguments else "[0][l]"
        return (
            f"FN constexpr int {name}({arguments}) {{ constexpr int t[{len(values)}][{len(values[0])}] = {{{rows}}}; "
            f"return t{place}; }}"
        )

    forth, slope = ACTIVATIONS[actor.activation]
    text = [
        f"constexpr int HIDDEN = {hidden}, SUMS = {len(SUMS)}, DIVERGENCE = {SUMS.index('kl')};",
        table("width_of", "int l", [list(widths)]),
        table("critic_weights", "int net, int l", [[layer.weight for layer in net] for net in critics.nets]),
        table("critic_biases", "int net, int l", [[layer.bias for layer in net] for net in critics.nets]),
        table("actor_weights", "int l", [[layer.weight for layer in actor.nets[0]]]),
        table("actor_biases", "int l", [[layer.bias for layer in actor.nets[0]]]),
        f"FN float activation(float x) {{ return {forth}; }}",
        f"FN float slope(float y) {{ return {slope}; }}",
    ]
    shared, blocks = _shared_bytes(actor, critics), 2 if _shared_bytes(actor, critics) <= _HALF else 1
    text.append(f"constexpr int SHARED_BYTES = {shared}, BLOCKS = {blocks};")
    settings = KernelSettings(
        prologue=losses_text(features, width, nets, stochastic=stochastic),
        sizes={
            "features": features, "width": width, "nets": nets, "inputs": features + width,
            "outputs": actor.sizes[-1], "hidden": hidden, "of_critics": nets * hidden,
            "critics_count": critics.count, "actor_count": actor.count, "launched": blocks_of(actor, critics),
            "processes": processes,
        },
        grid=Grid(
            threads=_THREADS, replicas=1, shared_bytes=shared, together=True
        ),
    )  # fmt: skip
    parts = (
        ELEMENTARY,
        "training/common/tensor_core.cuh",
        "training/off_policy/squashed.cuh",
        ("form", "\n".join(text)),
        "training/common/adam.cuh",
        "training/off_policy/small_batch.cuh",
    )
    return program_of(parts, {"critics": CRITICS_CALL, "actor": ACTOR_CALL}, settings)
