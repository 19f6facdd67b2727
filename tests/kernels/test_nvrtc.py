"""NVRTC compiles every kernel of every environment, without a GPU; the machine code is checked."""

import itertools
import os
import re
from typing import Any

import pytest
from harness import IDS, SIMILAR_PARTICLES, SMALL_PARAMS, TEAM_IDS
from nvrtc import ARCHITECTURES, check_program, compile_with_nvrtc, double_arithmetic, nvrtc_missing, programs, ptx_of

import gpu_envs
from gpu_envs import Choice, Derived, LogUniform, Normal, Uniform
from gpu_envs.codegen import AUTORESET_MODES, PRECISIONS
from gpu_envs.engine import rollouts, row_copies
from gpu_envs.errors import CompileError
from gpu_envs.rendering.painter import paint_program
from gpu_envs.specs.distributions import Distribution


@pytest.fixture(autouse=True)
def _nvrtc() -> None:
    missing = nvrtc_missing()
    if missing and os.environ.get("REQUIRE_NVRTC") == "1":
        pytest.fail(f"REQUIRE_NVRTC=1, but {missing}")
    if missing:
        pytest.skip(f"{missing}; pip install 'gpu_envs[cuda13]' brings it")


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize(("architecture", "mode"), [*zip(ARCHITECTURES, AUTORESET_MODES, strict=True)])
@pytest.mark.parametrize("env_id", [*IDS, *TEAM_IDS])
def test_compiles(env_id: str, architecture: str, mode: str) -> None:
    """Every architecture and every mode, but not all combinations."""
    for program in programs(env_id, mode, "float32"):
        check_program(program, architecture, "float32")


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
@pytest.mark.parametrize("env_id", SIMILAR_PARTICLES)
def test_particles_compile(env_id: str, continuous: bool) -> None:
    for program in programs(env_id, "SameStep", "float32", continuous_actions=continuous):
        check_program(program, "sm_90a", "float32")


def cycled(*kinds: Any) -> pytest.MarkDecorator:
    """Assigns the kinds to the environments in turn: each kind gets single-agent and team environments."""
    return pytest.mark.parametrize(("env_id", "kind"), [*zip([*IDS, *TEAM_IDS], itertools.cycle(kinds), strict=False)])


@pytest.mark.fast_cases(2)
@cycled(("float32", True), ("float64", False), ("float64", True))
def test_compiles_with_parameters_per_replica(env_id: str, kind: tuple[str, bool]) -> None:
    """Also in float64 with shared parameters."""
    precision, per_replica = kind
    for program in programs(env_id, "SameStep", precision, per_replica=per_replica):
        check_program(program, "sm_90a", precision)


@pytest.mark.fast_cases(2)
@cycled("NextStep", "SameStep", "Disabled")
def test_compiles_without_statistics(env_id: str, kind: str) -> None:
    for program in programs(env_id, kind, "float32", statistics=False):
        check_program(program, "sm_90", "float32")


def drawn_params(env_id: str) -> dict[str, Distribution]:
    """Distributions for an environment's parameters: four numbers with different distributions, and all arrays."""
    kinds = [Uniform(0, 1), Normal(0, 1), LogUniform(0.1, 1), Choice(1, 2, 5)]
    params = gpu_envs.spec(env_id).params.items()
    free = [n for n, p in params if p.kind == "real" and not (p.fixed or p.baked or isinstance(p, Derived))]
    arrays = {name: Normal(0, 1) for name, param in params if name in free and param.rank}
    return arrays | dict(zip((name for name in free if name not in arrays), kinds, strict=False))


@pytest.mark.fast_cases(2)
@cycled(*itertools.product(AUTORESET_MODES, PRECISIONS))
def test_compiles_with_drawn_parameters(env_id: str, kind: tuple[str, str]) -> None:
    for program in programs(env_id, *kind, drawn=drawn_params(env_id)):
        check_program(program, "sm_90a", kind[1])


@pytest.mark.fast_cases(2)
def test_compiles_with_a_drawn_parameter_that_is_observed(env_id: str) -> None:
    drawn = dict(list(drawn_params(env_id).items())[:1])
    for program in programs(
        gpu_envs.spec(env_id).with_observed_params(tuple(drawn)), "NextStep", "float32", drawn=drawn
    ):
        check_program(program, "sm_90a", "float32")


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "name"), [("CartPole-v1", "gravity"), ("RiceN-v0", "backstop_price")])
def test_compiles_with_a_choice_of_many_numbers(env_id: str, name: str) -> None:
    for program in programs(env_id, "SameStep", "float32", drawn={name: Choice(*range(20_000))}):
        check_program(program, "sm_90a", "float32")


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "RiceN-v0", "TagContinuous-v0"])
def test_a_checked_build_compiles_with_drawn_parameters(env_id: str) -> None:
    drawn = drawn_params(env_id)
    spec = gpu_envs.spec(env_id).with_observed_params(tuple(drawn))
    for program in programs(spec, "SameStep", "float32", checked=True, drawn=drawn, **SMALL_PARAMS.get(env_id, {})):
        ptx_of(program.source)


HOOKS = {
    "begin_params(params, i, key)": "params.get(i)",
    "begin_params(call.params, i, key)": "call.params.get(i)",
    "begin_params(params, env.index(k), key)": "params.get(env.index(k))",
    "next_params(next.params, k, params, numbers, i, key)": "params.get(i)",
    "store_params(params, env.index(k), next.params, k);": "",
    "NextParams params;": "",
    "next.ready[k] || (!draws_ahead() && tile.flags[k] == 0)": "next.ready[k]",
    "begin_params(p, call.params, team);": "",
    "EpisodeParams": "const Params",
}
"""Code in drivers for randomised parameters, and the code without them."""


@pytest.mark.slow
@pytest.mark.parametrize("mode", AUTORESET_MODES)
def test_unused_randomisation_costs_nothing(mode: str) -> None:
    """The machine code equals that of drivers without randomised parameters."""
    found = set()
    for program in [p for env in ("CartPole-v1", "TagGridWorld-v0") for p in programs(env, mode, "float32")]:
        driver = program.source.rindex("drawn.cuh")  # in the #line directive before the header
        found |= {hook for hook in HOOKS if hook in program.source[driver:]}
        bare = program.source[driver:]
        for hook, without in HOOKS.items():
            bare = bare.replace(hook, without)
        bare = bare.replace("using const Params = const Params;", "")
        bare = program.source[:driver] + bare
        assert compile_with_nvrtc(bare).cubin == compile_with_nvrtc(program.source).cubin
    assert found == set(HOOKS)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_programs_without_rules_compile(architecture: str) -> None:
    """The painter, the copy of rows, and the kernel between the steps of a team."""
    check_program(paint_program(), architecture, "float32")
    check_program(row_copies.copy_program(16), architecture, "float32")
    check_program(row_copies.copy_program(24, threads=32), architecture, "float32")
    check_program(rollouts.between_steps_program(3, "float"), architecture, "float32")
    check_program(rollouts.between_steps_program(3, "double"), architecture, "float64")


def test_the_painter_rounds_as_the_host_does() -> None:
    ptx = ptx_of(paint_program().source)
    assert double_arithmetic(ptx) == []
    assert re.findall(r"\b(?:mul|add|sub|div|sqrt|fma)\.(?!rn\b)\S*f32", ptx) == []


def test_an_error_names_the_header_and_its_line() -> None:
    program = next(programs("CartPole-v1", "SameStep", "float32"))
    text = program.source.replace("FN Outcome step(", "FN Outcome step(Nonsense, ", 1)
    with pytest.raises(CompileError, match=r"cartpole\.cuh\(\d+\)"):
        ptx_of(text)


def strings(ptx: str) -> set[bytes]:
    """The strings that a kernel could print."""
    found = re.findall(r"\$str[^\[]*\[\d+\] = \{([^}]*)\}", ptx)
    return {bytes(map(int, codes.split(","))).rstrip(b"\0") for codes in found}


@pytest.mark.fast_cases(2)
@cycled(True, False)
def test_a_checked_build_compiles(env_id: str, kind: bool) -> None:
    for program in programs(env_id, "SameStep", "float32", checked=True, statistics=kind):
        ptx_of(program.source)


@pytest.mark.slow
def test_a_checked_build_names_lines_of_the_rules() -> None:
    """And not lines of checked.cuh."""
    for env_id in ("TagContinuous-v0", "TagGridWorld-v0"):
        header = str(gpu_envs.spec(env_id).header)
        for program in programs(env_id, "SameStep", "float32", checked=True):
            found = strings(ptx_of(program.source))
            assert header.encode() in found
            assert b"checked.cuh" not in found
