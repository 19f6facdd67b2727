"""What the kernels of wide perceptrons are told."""

from gpu_envs.backend.structs import Struct
from gpu_envs.training.operations.fused_programs import ACT_MEMBERS, SCALE, UPDATE_MEMBERS, VALUES_MEMBERS
from gpu_envs.training.operations.ops import SUMS

_PACKED = ("const u8*", "packed", ("packed_bytes",))
_MASK = ("const u8*?", "action_mask", ("samples", "outputs"))

_KEPT_MEMBERS = (
    ("Index", "units"),
    ("u8*", "kept", ("kept_bytes",)),
    ("float*", "sums", ("blocks", "sums_of_block")),
    ("float*?", "norm_sums", ("blocks", "warps", "norm_sums_of_warp")),
)
_FUNCTION_MEMBERS = (
    ("Index", "rows"),
    ("const float*", "flat", ("parameters",)),
    ("const float*", "observations", ("rows", "features")),
    *SCALE,
    _PACKED,
)

PACK_CALL = Struct.of(
    "PackCall", "float", ("const float*", "flat", ("parameters",)), ("u8*", "packed", ("packed_bytes",))
)
ACT_CALL = Struct.of(
    "WideActCall",
    "float",
    *ACT_MEMBERS,
    _PACKED,
    ("float*?", "values", ("rows",)),
    ("const u8*?", "action_mask", ("rows", "outputs")),
    ("float*?", "largest", (1,)),
    ("const u8*?", "alive", ("rows",)),
)
VALUES_CALL = Struct.of("WideValuesCall", "float", *VALUES_MEMBERS, _PACKED)
UPDATE_CALL = Struct.of("UpdateCall", "float", *UPDATE_MEMBERS, _PACKED, _MASK, *_KEPT_MEMBERS)
OUTPUTS_CALL = Struct.of("OutputsCall", "float", *_FUNCTION_MEMBERS, ("float*", "outputs", ("rows", "nets", "outputs")))
BACK_CALL = Struct.of(
    "UpdateCall",
    "float",
    *_FUNCTION_MEMBERS,
    ("int", "actors"),
    *_KEPT_MEMBERS,
    ("int", "weights"),
    ("float*?", "outputs", ("rows", "nets", "outputs")),
    ("const float*", "by_outputs", ("rows", "nets", "outputs")),
    ("const float*?", "curvatures", ("rows", "nets", "outputs")),
    ("float*?", "by_inputs", ("rows", "nets", "by_inputs")),
)
"""Of functions: what goes back begins with derivatives that are linear in the outputs."""
GRADIENT_CALL = Struct.of(
    "GradientCall",
    "float",
    ("Index", "units"),
    ("const u8*", "kept", ("kept_bytes",)),
    ("float*", "partials", ("partials_size",)),
)
REDUCE_CALL = Struct.of(
    "WideReduceCall",
    "float",
    ("int", "parameters"),
    ("int", "actors"),
    ("int", "blocks"),
    ("int", "more"),
    ("int", "last"),
    ("const float*", "partials", ("partials_size",)),
    ("const float*", "sums", ("blocks", "sums_of_block")),
    ("const float*", "flat", ("parameters",)),
    ("float*", "gradient", ("parameters",)),
    ("float*?", "totals", (len(SUMS),)),
)
