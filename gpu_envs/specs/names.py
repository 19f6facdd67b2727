"""Checks that names in a spec are valid in C++, and not used by the headers."""

import keyword
import re
from collections.abc import Iterable, Mapping

from gpu_envs.specs.params import Param

CPP_WORDS = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class "
    "compl concept const const_cast consteval constexpr constinit continue co_await co_return co_yield decltype "
    "default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline "
    "int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public real "
    "register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch "
    "template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile "
    "wchar_t while xor xor_eq".split()
)
"""Reserved words of C++."""

MACROS = frozenset(
    "CHECKED FN FOLD_PHASE FOR_EACH_AGENT FOR_EACH_AGENT_NO_WAIT FOR_EACH_BLOCK FOR_EACH_COLUMN FOR_EACH_ELEMENT "
    "FOR_EACH_ENV FOR_EACH_ENV_ALTERNATING FOR_EACH_ENV_PER_WARP FOR_EACH_LANE FOR_EACH_LANE_ALONE FOR_EACH_MARKED "
    "FOR_EACH_METRIC FOR_EACH_OF_BLOCK FOR_EACH_TOTAL KERNEL KERNEL_AS KERNEL_OF_BLOCKS FOR_EACH_LANE_OR OMP_SIMD "
    "NO_UNROLL SCRATCH_FILL NOINLINE STEP_KERNEL UNROLL".split()
)

TYPES = frozenset(
    "ActAndStepCall ActCall Action ActionBounds ActionKind Actions SumFold AgentNumber Autoreset BoxActions Buffers "
    "CheckedArray CheckedIf CheckedIndex CheckedPointer Chunk Constants DiscreteActions DrawNumbers Drawn Element "
    "Elements EpisodeParams Episodes Fetched MaxFold Heap LocalTable Index Key MinFold ScratchMemory Mask MetricCounts "
    "MetricValues Metrics Near NotFetched Numbers Observation ObservationTile OfObservation Offence Outcome "
    "ParamBuffers Params Part Plain Random RangeTile Record Reduction ResetCall RoleCall RoleNumber RolloutCall Row "
    "RowWriting Rows RowsOfWarp Schedule Scratch ScratchBuffers Seeds Shape SinCos NextStart NextParams State "
    "StateBuffers States StepCall Stream SumType Sums Table Team TeamActions ThreadTile Tile Totals Turns WarpTile "
    "Wide Words World CallsOfRuns i64 u16 u32 u64 u8".split()
)
"""Types in the headers and in generated code."""

_SINGLE_AGENT_TYPES = frozenset(
    "ActionBounds Actions DiscreteActions BoxActions Episodes States Outcome NextStart NextParams Sums Tile".split()
)
"""Types in single-agent programs only: a team may have a choice of these names."""

CONSTANTS = frozenset(
    "ACTION_NAN ACTION_NOISE ACTION_OUT_OF_RANGE ACTION_SIZE ACTIVE_HEADS AGENTS ALL_ROWS AUTORESET BLOCK BLOCKS "
    "BY_BLOCK BY_WARP CHECKED_SAME CHUNK_AGENTS DIRECTLY DISABLED DRAWN DRAWN_AHEAD EPISODE_OVER FEW "
    "FILLED_BY_BLOCK FIRST_ROWS FLOAT32 FLOAT64 FOLD_LANES GROUP HOST INT32 INT64 INTEGER_ACTIONS LANES LAST_ROWS "
    "LOCAL_BYTES MASKED METRICS NEVER_BEGUN NEXT_STEP NO_OFFENCE OBSERVATION_NOISE OF_LAST OF_MAX OF_MEAN OF_SUM "
    "ON_GPU PARAMETER PERMUTATION PI RANDOM_ACTION READ_BY_BLOCK REPLAY RESET ROLES ROOM ROWS_AT ROW_LANES "
    "ROW_WRITING RUNNING_METRICS SAME_STEP SAMPLER SCHEDULE SEPARATE_SHARED SEVERAL SHARED SPREAD STATE_PUSH "
    "STATISTICS STEP TEAMS TERMINATED THREADS TOTALS TRUNCATED UINT8 WARP WARP_FLOATS".split()
)
"""Constants in a team's program."""

PARAMS_MEMBERS = frozenset({"get"})
"""Member functions of ``Params``."""

WORLD_MEMBERS = frozenset({"put", "put_arrays", "store", "store_arrays", "store_shared"})
"""Member functions of ``World``."""


def check_name(name: str, what: str, *, members: frozenset[str] = frozenset()) -> None:
    """Raises a ValueError if a name is invalid in C++ or Python, or if the headers or ``members`` use it.

    ``what`` starts messages; ``members`` are member functions of the struct that gets a member of this name.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in CPP_WORDS or keyword.iskeyword(name):
        allowed = "a letter, then letters, digits, '_', and no reserved word"
        raise ValueError(f"{what} {name!r} must be a name in both C++ and Python: {allowed}")
    if name in MACROS | TYPES | members:
        raise ValueError(f"{what} {name!r} has a name that the headers use; rename it")


def enum_name(name: str) -> str:
    """Name of the C++ enum of a choice."""
    return "".join(part.capitalize() for part in name.split("_"))


def check_choices(settings: Mapping[str, Param], what: str, *, is_team: bool) -> None:
    """Raises a ValueError if a choice cannot be a C++ enum; messages start with ``what``, the spec."""
    chosen = {name: param.choices for name, param in settings.items() if param.choices}
    enums: dict[str, str] = {}
    for name, choices in chosen.items():
        enum = enum_name(name)
        if enum in TYPES - (_SINGLE_AGENT_TYPES if is_team else frozenset()):
            raise ValueError(
                f"{what}: the choice {name!r} would be the C++ enum {enum}, which the headers use for something else; "
                "rename it"
            )
        if enums.setdefault(enum, name) != name:
            raise ValueError(
                f"{what}: the choices {enums[enum]!r} and {name!r} are both the C++ enum {enum}; rename one"
            )
        words = [choice.replace("-", "_") for choice in choices]
        for choice, word in zip(choices, words, strict=True):
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", word) or word in CPP_WORDS | MACROS:
                raise ValueError(
                    f"{what}: {name!r} has the choice {choice!r}, which must be a C++ name once '-' is replaced by "
                    "'_': a letter, then letters, digits, '_', '-', and no reserved word"
                )
        if len(set(words)) < len(words):
            raise ValueError(
                f"{what}: {name!r} has choices that are equal with '_' in place of '-': {choices}; rename one"
            )


def check_constants(names: Iterable[str], what: str) -> None:
    """Raises a ValueError if a role or fixed parameter of a team would be a C++ constant that exists already."""
    constants: dict[str, str] = {}
    for name in names:
        constant = name.upper()
        if constant in CONSTANTS | MACROS:
            raise ValueError(f"{what}: {name!r} would be the C++ constant {constant}, which the headers use; rename it")
        if constant in constants:
            raise ValueError(
                f"{what}: {constants[constant]!r} and {name!r} would be the same C++ constant, {constant}; rename one"
            )
        constants[constant] = name
