"""The kernels of off-policy algorithms' losses, row by row of a batch."""

from gpu_envs.backend.program import ELEMENTARY, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.operations.ops import SUMS

CHOOSE_CALL = Struct.of(
    "ChooseCall",
    "float",
    ("Index", "rows"),
    ("const float*", "observations", ("rows", "features")),
    ("const float*", "outputs", ("rows", 1, "outputs")),
    ("const float*", "normal", ("rows", "width")),
    ("float", "noise"),
    ("float", "most"),
    ("float*", "inputs", ("rows", "inputs")),
    ("float*", "log_probs", ("rows",)),
)

AIM_CALL = Struct.of(
    "AimCall",
    "float",
    ("Index", "rows"),
    ("const float*", "targets", ("rows", "nets", 1)),
    ("const float*", "returns", ("rows",)),
    ("const float*", "discounts", ("rows",)),
    ("const u8*", "found", ("rows",)),
    ("const float*", "log_probs", ("rows",)),
    ("const float*", "log_temperature", (1,)),
    ("float*", "by_said", ("rows", "nets", 1)),
    ("float*", "curvatures", ("rows", "nets", 1)),
)

JUDGE_CALL = Struct.of(
    "JudgeCall",
    "float",
    ("Index", "rows"),
    ("const float*", "said", ("rows", "nets", 1)),
    ("const float*", "by_said", ("rows", "nets", 1)),
    ("const u8*", "found", ("rows",)),
    ("float*", "sums", (len(SUMS), "rows")),
)

STEER_CALL = Struct.of(
    "SteerCall",
    "float",
    ("Index", "rows"),
    ("const float*", "inputs", ("rows", "inputs")),
    ("const float*", "outputs", ("rows", 1, "outputs")),
    ("const float*", "normal", ("rows", "width")),
    ("const float*", "log_probs", ("rows",)),
    ("const u8*", "found", ("rows",)),
    ("const float*", "said", ("rows", "nets", 1)),
    ("const float*", "by_actions", ("rows", "nets", "width")),
    ("const float*", "log_temperature", (1,)),
    ("float", "target_entropy"),
    ("float*", "by_outputs", ("rows", 1, "outputs")),
    ("float*", "by_temperature", ("rows",)),
    ("float*", "sums", (len(SUMS), "rows")),
)

_CALLS = {"choose": CHOOSE_CALL, "aim": AIM_CALL, "judge": JUDGE_CALL, "steer": STEER_CALL}


def program(features: int, width: int, nets: int, *, stochastic: bool) -> Program:
    """The source, for observations and actions of such lengths and so many critics."""
    outputs = width * (2 if stochastic else 1)
    settings = KernelSettings(
        prologue=losses_text(features, width, nets, stochastic=stochastic),
        sizes={"features": features, "width": width, "nets": nets, "outputs": outputs, "inputs": features + width},
        weight=width,
    )
    return program_of(
        (ELEMENTARY, "training/off_policy/squashed.cuh", "training/off_policy/actor_critic.cuh"), _CALLS, settings
    )


def losses_text(features: int, width: int, nets: int, *, stochastic: bool) -> str:
    """What ``squashed.cuh`` has compiled in."""
    named = {"POLICY_LOSS": "policy_loss", "VALUE_LOSS": "value_loss", "ENTROPY": "entropy", "ALIVE": "alive"}
    sums = ", ".join(f"{name} = {SUMS.index(of)}" for name, of in named.items())
    lines = [
        f"constexpr int FEATURES = {features}, WIDTH = {width}, NETS = {nets}, {sums};",
        f"constexpr bool STOCHASTIC = {str(stochastic).lower()};",
    ]
    return "\n".join(lines)
