"""Python rules compute the same numbers as in Python, and the same bits as the equivalent C++ rules."""

import dataclasses
import math
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import nvrtc
import pytest
import python_cartpole
import python_pendulum
import python_tag_grid
from harness import MODES, assert_all_same, assert_same_bits, on_host
from registered import draw_actions, numpy_by_role, record
from small_envs import check_message
from translation_cases import HEADER, computing_spec, function_names, import_source, rules_of, samples

import gpu_envs
from gpu_envs import rules
from gpu_envs.backend.nvrtc import compile_source
from gpu_envs.backend.program import Device, Program
from gpu_envs.backend.toolchain import find_compiler
from gpu_envs.codegen import PRECISIONS
from gpu_envs.testing import builds, check_environment
from gpu_envs.translation.translate import translate_rules

STEPS, REPLICAS = 300, 70


def make_env(spec: gpu_envs.Spec, replicas: int, device: str = "cpu", **options: Any) -> Any:
    """Return an environment of a spec that is not registered."""
    if isinstance(spec, gpu_envs.TeamSpec):
        return gpu_envs.MultiAgentEnv(spec, replicas, device=device, **options)
    assert isinstance(spec, gpu_envs.EnvSpec)
    return gpu_envs.VectorEnv(spec, replicas, device=device, **options)


def test_arithmetic_is_pythons(tmp_path: Path) -> None:
    spec, python = computing_spec(tmp_path)
    inputs = samples()
    replicas = len(inputs["x"])
    env = make_env(spec, replicas, precision="float64")
    env.reset(seed=0)
    for name, values in inputs.items():
        env.state[name] = values
    env.step(np.zeros(replicas, np.int64))
    wrong = []
    for name in function_names():
        for k, actual in enumerate(env.state[f"r_{name}"]):
            x, y, i, j = inputs["x"][k], inputs["y"][k], int(inputs["m"][k]), int(inputs["n"][k])
            expected = getattr(python, name)(x, y, i, j)
            same = actual == expected and np.signbit(actual) == np.signbit(float(expected))
            if not same and not (name.startswith("near") and math.isclose(actual, expected, rel_tol=1e-13)):
                wrong.append(f"{name}({x}, {y}, {i}, {j}) is {actual!r} and not {expected!r}")
                break
    env.close()
    assert wrong == []


# --- the same bits as C++ rules ---

TWINS = {"CartPole-v1": python_cartpole, "Pendulum-v1": python_pendulum, "TagGridWorld-v0": python_tag_grid}
"""Registered environments, and modules with the same rules in Python."""

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "CartPole-v1": [{}, {"kinematics_integrator": "semi-implicit", "sutton_barto_reward": True}],
    "Pendulum-v1": [{}],
    "TagGridWorld-v0": [{"grid_length": 6}, {"use_full_observation": False, "num_taggers": 7, "start": "fixed"}],
}
CASES = [
    *((env_id, 0, mode, "float32") for env_id in VARIANTS for mode in MODES),
    *((env_id, 0, "SameStep", "float64") for env_id in VARIANTS),
    *((env_id, 1, "SameStep", "float32") for env_id in VARIANTS if len(VARIANTS[env_id]) > 1),
]
"""Environment, variant, mode and precision."""


def twin(env_id: str) -> gpu_envs.Spec:
    """Return the spec with Python rules instead of the header."""
    spec = gpu_envs.spec(env_id)
    return dataclasses.replace(spec, id=f"Python{env_id}", header=rules_of(TWINS[env_id]))


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize(("env_id", "variant", "mode", "precision"), CASES)
def test_the_same_bits_as_the_header(env_id: str, variant: int, mode: str, precision: str, device: str) -> None:
    options = {"autoreset_mode": mode, "precision": precision, "max_episode_steps": 70, **VARIANTS[env_id][variant]}
    results = []
    for spec, at in ((twin(env_id), device), (gpu_envs.spec(env_id), "cpu" if precision == "float32" else device)):
        env = make_env(spec, REPLICAS, at, **options)
        first = numpy_by_role(env, env.reset(seed=2)[0])
        steps = record(env, draw_actions(env, STEPS))
        results.append((first, steps, on_host(dict(env.state)), on_host(env.episode_metrics)))
        env.close()
    assert_all_same(results)


# --- compiler warnings and lines ---


def specs(folder: Path) -> list[gpu_envs.Spec]:
    return [computing_spec(folder)[0], *(twin(env_id) for env_id in TWINS)]


def programs(spec: gpu_envs.Spec, precision: str, device: Device) -> Iterator[Program]:
    for params in VARIANTS.get(spec.id.removeprefix("Python"), [{}]):
        yield from nvrtc.programs(spec, "SameStep", precision, device=device, **params)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n", range(1 + len(TWINS)))
def test_no_warnings_on_a_cpu(n: int, precision: str, tmp_path: Path) -> None:
    for program in programs(specs(tmp_path)[n], precision, Device(on_gpu=False)):
        text = tmp_path / "made.cpp"
        text.write_text(program.source)
        flags = ["-std=c++17", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-fopenmp-simd", "-fsyntax-only"]
        flags += [
            "-Wno-unused-const-variable",
            "-Wno-unneeded-internal-declaration",
        ]  # not every program uses all constants
        result = subprocess.run([*find_compiler(), *flags, str(text)], capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(bool(nvrtc.nvrtc_missing()), reason=nvrtc.nvrtc_missing() or "NVRTC is installed")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n", range(1 + len(TWINS)))
def test_no_warnings_on_a_gpu(n: int, precision: str, tmp_path: Path) -> None:
    for program in programs(specs(tmp_path)[n], precision, nvrtc.H200):
        assert compile_source(program.source, program.name, "sm_90a").log == ""


def test_lines_are_the_authors(tmp_path: Path) -> None:
    """``#line`` directives give each C++ assignment the line of the Python assignment to the same field."""
    spec, python = computing_spec(tmp_path)
    lines = Path(str(python.__file__)).read_text().splitlines()
    text = translate_rules(spec, spec.check_params({}, 1))
    file, at, checked_lines = "", 0, 0
    for line in text.splitlines():
        match = re.fullmatch(r'#line (\d+) "(.*)"', line)
        if match:
            at, file = int(match[1]), match[2]
            continue
        stored = re.match(r"    s\.(r_\w+) = \w", line)
        if stored and file == python.__file__ and "_e" in line:
            assert f"s.{stored[1]} = " in lines[at - 1]
            checked_lines += 1
        at += 1
    assert checked_lines > 50


@pytest.mark.slow
def test_an_index_out_of_range_names_the_python_line(tmp_path: Path) -> None:
    text = HEADER + KINDS.replace("s.cells[action] +=", "s.cells[action + 4] +=")
    spec = dataclasses.replace(kinds_spec(tmp_path), header=rules_of(import_source(text, tmp_path, "astray")))
    line = text[: text.index("action + 4")].count("\n") + 1
    assert check_message(builds.undefined_values, spec).startswith(f"{tmp_path}/astray.py:{line}: index 5 of 'cells'")


# --- fields, tables, spaces and masks ---

KINDS = """
def reset(s: State, p: Params, random: Random) -> None:
    s.count, s.small, s.on = 3, 250, True
    for j in range(len(s.cells)):
        s.cells[j] = j * j
        s.weights[j] = j / 4

def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:
    s.count += action
    s.small += 10
    s.on = not s.on
    s.cells[action] += p.map[action, 1] + p.map[1][0] + p.map.shape[1]
    s.cells[-1] = len(p.map) + p.line[s.count % 3]
    s.weights[0] += p.steep[1] if p.flags[0] else 100
    total = 0
    for j in range(p.rows):
        total += s.cells[j] * (s.weights[j] > 0)
    return total, s.count >= 9

def observe(s: State, p: Params, observation: Observation) -> None:
    observation[0] = s.count
    observation[1] = s.small / 255
    observation[2] = s.on
"""


def kinds_spec(folder: Path) -> gpu_envs.EnvSpec:
    field = gpu_envs.Field
    return gpu_envs.EnvSpec(
        id="Kinds-v0",
        header=rules_of(import_source(HEADER + KINDS, folder)),
        state={
            "count": field("int"),
            "small": field("byte"),
            "on": field("bool"),
            "cells": field("int", lambda p: p["rows"]),
            "weights": field("real", 5),
        },
        params={"rows": gpu_envs.Param(5, fixed=True)},
        tables={
            "map": gpu_envs.Table([[1, 2, 3], [4, 5, 6]], "byte"),
            "line": gpu_envs.Table([10, 20, 30], "int"),
            "steep": gpu_envs.Table([0.5, 0.25]),
            "flags": gpu_envs.Table([True, False], "bool"),
        },
        observation=gymnasium.spaces.Box(-100, 100, (3,), np.float32),
        action=gymnasium.spaces.Discrete(2),
    )


def test_fields_of_all_types_and_tables(tmp_path: Path) -> None:
    env = make_env(kinds_spec(tmp_path), 2, autoreset_mode="Disabled")
    assert env.reset(seed=0)[0].tolist() == [[3, np.float32(250 / 255), 1]] * 2
    observations, rewards, *_ = env.step(np.array([0, 1]))
    # small wraps as a byte does; cells were 0 1 4 9 16, and the first weight 0
    assert env.state["small"].tolist() == [4, 4]
    assert env.state["cells"].tolist() == [[0 + 2 + 4 + 3, 1, 4, 9, 2 + 10], [0, 1 + 5 + 4 + 3, 4, 9, 2 + 20]]
    assert env.state["weights"].tolist() == [[0.25, 0.25, 0.5, 0.75, 1.0]] * 2
    assert env.state["on"].tolist() == [False, False]
    assert rewards.tolist() == [9 + 1 + 4 + 9 + 12, 13 + 4 + 9 + 22]
    assert observations[:, 0].tolist() == [3, 4]
    env.close()


OBSERVATIONS = """
def reset(s: State, p: Params, random: Random) -> None:
    s.at = random.integer(4)

def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:
    s.at += action - 1
    s.at = s.at % 4
    return s.at, False

def observe(s: State, p: Params, observation: Observation) -> None:
    observation.place[0] = s.at / 3
    for row in range(4):
        for column in range(2):
            for colour in range(3):
                observation.image[row, column, colour] = 200 + colour if row == s.at else 0
    observation.image[23] = 7
    observation.count[0] = -s.at

def allow(s: State, p: Params, mask: Mask) -> None:
    mask[0] = s.at > 0
    if s.at == 3:
        mask[2] = False
"""


def observation_spec(folder: Path) -> gpu_envs.EnvSpec:
    box = gymnasium.spaces.Box
    return gpu_envs.EnvSpec(
        id="Seen-v0",
        header=rules_of(import_source(HEADER + OBSERVATIONS, folder, "seen")),
        state={"at": gpu_envs.Field("int")},
        params={},
        observation=gymnasium.spaces.Dict(
            place=box(0, 1, (1,), np.float32),
            image=box(0, 255, (4, 2, 3), np.uint8),
            count=box(-9, 9, (1,), np.int32),
        ),
        action=gymnasium.spaces.Discrete(3),
        action_mask=True,
        max_episode_steps=20,
    )


def test_images_dicts_and_masks(tmp_path: Path) -> None:
    env = make_env(observation_spec(tmp_path), 50, autoreset_mode="SameStep")
    observations, infos = env.reset(seed=0)
    for _ in range(30):
        at = np.array(env.state["at"])
        image = np.zeros((50, 4, 2, 3), np.uint8)
        image[np.arange(50), at] = [200, 201, 202]
        image[:, 3, 1, 2] = 7
        assert_same_bits(observations["image"], image)
        assert_same_bits(observations["place"], (at[:, None] / np.float32(3)).astype(np.float32))
        assert_same_bits(observations["count"], -at[:, None])
        possible = np.stack([at > 0, at < 4, at < 3], 1)
        assert (infos["action_mask"] == possible).all()
        observations, *_, infos = env.step(possible.argmax(1))
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("spec_of", [observation_spec, kinds_spec])
def test_rules_in_python_pass_the_checker(spec_of: Any, tmp_path: Path) -> None:
    check_environment(spec_of(tmp_path), devices=["cpu"])


def test_the_smallest_int_divided_by_minus_one(tmp_path: Path) -> None:
    """The division, which traps on a CPU, wraps around."""
    divided = (
        "k = random.integer(1) - 1\n    m = -2147483647 + k\n    s.count, s.small, s.on = m // k + m % k, 250, True"
    )
    text = KINDS.replace("s.count, s.small, s.on = 3, 250, True", divided)
    spec = dataclasses.replace(kinds_spec(tmp_path), header=rules_of(import_source(HEADER + text, tmp_path, "divided")))
    env = make_env(spec, 2)
    env.reset(seed=0)
    assert env.state["count"].tolist() == [-(2**31)] * 2
    env.close()


NESTED = """
def make_reset():
    def reset(s: State, p: Params, random: Random) -> None:
        '''Strings
may start here.'''
# and comments
        s.at = 1

    return reset

reset = make_reset()
"""


def test_nested_functions_with_lines_further_left(tmp_path: Path) -> None:
    text = HEADER + NESTED + OBSERVATIONS[OBSERVATIONS.index("def step") :]
    spec = dataclasses.replace(observation_spec(tmp_path), header=rules_of(import_source(text, tmp_path)))
    assert "s.at = 1" in translate_rules(spec, spec.check_params({}, 1))


def test_rules_are_never_run() -> None:
    for call in (lambda: rules.clip(1, 2, 3), lambda: rules.State().x, lambda: rules.Random().bits()):
        with pytest.raises(RuntimeError, match="never run by Python"):
            call()
    with pytest.raises(AttributeError, match="capitals"):
        rules.clamp  # noqa: B018
