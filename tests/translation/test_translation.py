"""Rules in Python compute what Python computes, and the same bits as the rules of a C++ author."""

import dataclasses
import math
import re
import subprocess
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import python_cartpole
import python_pendulum
import python_tag_grid
from harness import MODES, assert_same_bits
from nvrtc import nvrtc_missing
from translation_cases import HEADER, computing_spec, functions, module, rules_of, samples

import gpu_envs
from gpu_envs import rules
from gpu_envs.backend.nvrtc import compiled
from gpu_envs.backend.program import Device, Program
from gpu_envs.backend.toolchain import find_compiler
from gpu_envs.codegen import PRECISIONS, SimulationConfig, generate, layout_of
from gpu_envs.testing import check_environment
from gpu_envs.translation.translate import translated

STEPS, REPLICAS = 300, 70


def opened(spec: gpu_envs.Spec, replicas: int, device: str = "cpu", **options: Any) -> Any:
    """An environment of a spec that is not registered."""
    if isinstance(spec, gpu_envs.TeamSpec):
        return gpu_envs.MultiAgentEnv(spec, replicas, device=device, **options)
    assert isinstance(spec, gpu_envs.EnvSpec)
    return gpu_envs.VectorEnv(spec, replicas, device=device, **options)


def test_arithmetic_is_pythons(tmp_path: Path) -> None:
    spec, python = computing_spec(tmp_path)
    given = samples()
    replicas = len(given["x"])
    env = opened(spec, replicas, precision="float64")
    env.reset(seed=0)
    for name, values in given.items():
        env.state[name] = values
    env.step(np.zeros(replicas, np.int64))
    wrong = []
    for name in functions():
        for k, made in enumerate(env.state[f"r_{name}"]):
            x, y, i, j = given["x"][k], given["y"][k], int(given["m"][k]), int(given["n"][k])
            expected = getattr(python, name)(x, y, i, j)
            same = made == expected and np.signbit(made) == np.signbit(float(expected))
            if not same and not (name.startswith("near") and math.isclose(made, expected, rel_tol=1e-13)):
                wrong.append(f"{name}({x}, {y}, {i}, {j}) is {made!r} and not {expected!r}")
                break
    env.close()
    assert wrong == []


# --- the same bits as a C++ author's ---

TWINS = {"CartPole-v1": python_cartpole, "Pendulum-v1": python_pendulum, "TagGridWorld-v0": python_tag_grid}
"""Environments of this package, and the same rules in Python."""

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
    """The spec with rules in Python in place of the header."""
    spec = gpu_envs.spec(env_id)
    return dataclasses.replace(spec, id=f"Python{env_id}", header=rules_of(TWINS[env_id]))


def over(flags: Any) -> np.ndarray:
    """Whose episode has ended, of flags for each replica or, by role, for each agent."""
    if isinstance(flags, Mapping):
        return np.asarray(np.concatenate(list(flags.values()), 1).all(1))
    return np.asarray(flags)


def either(one: Any, other: Any) -> Any:
    return {role: one[role] | other[role] for role in one} if isinstance(one, Mapping) else one | other


def played(env: Any, mode: str) -> Iterator[Any]:
    """What a reset and many random steps give; in Disabled mode, what is over is reset."""
    space = env.action_space if hasattr(env, "action_space") else gymnasium.spaces.Dict(env.action_spaces)
    space.seed(1)
    yield env.reset(seed=2)[0]
    for _ in range(STEPS):
        *parts, _ = env.step(space.sample())
        yield parts
        ended = over(either(parts[2], parts[3]))
        if mode == "Disabled" and ended.any():
            yield env.reset(options={"reset_mask": ended})[0]


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize(("env_id", "variant", "mode", "precision"), CASES)
def test_the_same_bits_as_the_header(env_id: str, variant: int, mode: str, precision: str, device: str) -> None:
    options = {"autoreset_mode": mode, "precision": precision, "max_episode_steps": 70, **VARIANTS[env_id][variant]}
    ours = opened(twin(env_id), REPLICAS, device, **options)
    theirs = opened(gpu_envs.spec(env_id), REPLICAS, "cpu" if precision == "float32" else device, **options)
    for step, (one, other) in enumerate(zip(played(ours, mode), played(theirs, mode), strict=True)):
        assert_same_bits(one, other, f"step {step}")
    assert_same_bits(dict(ours.state), dict(theirs.state), "state")
    assert_same_bits(ours.episode_metrics, theirs.episode_metrics, "metrics")
    for env in (ours, theirs):
        env.close()


# --- what the compilers are given ---


def specs(folder: Path) -> list[gpu_envs.Spec]:
    return [computing_spec(folder)[0], *(twin(env_id) for env_id in TWINS)]


def programs(spec: gpu_envs.Spec, precision: str, *, on_gpu: bool) -> Iterator[Program]:
    for params in VARIANTS.get(spec.id.removeprefix("Python"), [{}]):
        config = SimulationConfig(spec, 5000, "SameStep", precision, 500, spec.check_params(params, 1))
        layout = layout_of(config, Device(on_gpu=on_gpu, processors=132, shared_bytes=227 * 1024), frozenset())
        yield from (generate(layout, name) for name in layout.modules)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n", range(1 + len(TWINS)))
def test_no_warnings_on_a_cpu(n: int, precision: str, tmp_path: Path) -> None:
    for program in programs(specs(tmp_path)[n], precision, on_gpu=False):
        text = tmp_path / "made.cpp"
        text.write_text(program.source)
        flags = ["-std=c++17", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-fopenmp-simd", "-fsyntax-only"]
        flags += ["-Wno-unused-const-variable", "-Wno-unneeded-internal-declaration"]  # what not every program needs
        done = subprocess.run([*find_compiler(), *flags, str(text)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(bool(nvrtc_missing()), reason=nvrtc_missing() or "it is there")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n", range(1 + len(TWINS)))
def test_no_warnings_on_a_gpu(n: int, precision: str, tmp_path: Path) -> None:
    for program in programs(specs(tmp_path)[n], precision, on_gpu=True):
        assert compiled(program.source, program.name, "sm_90a").log == ""


def test_lines_are_the_authors(tmp_path: Path) -> None:
    """Each line of C++ that says so comes from the line of Python with the same name on its left."""
    spec, python = computing_spec(tmp_path)
    lines = Path(str(python.__file__)).read_text().splitlines()
    text = translated(spec, spec.check_params({}, 1))
    file, at, seen = "", 0, 0
    for line in text.splitlines():
        found = re.fullmatch(r'#line (\d+) "(.*)"', line)
        if found:
            at, file = int(found[1]), found[2]
            continue
        stored = re.match(r"    s\.(r_\w+) = \w", line)
        if stored and file == python.__file__ and "_e" in line:
            assert f"s.{stored[1]} = " in lines[at - 1]
            seen += 1
        at += 1
    assert seen > 50


# --- whatever rules may use besides ---

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
        header=rules_of(module(HEADER + KINDS, folder)),
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
    env = opened(kinds_spec(tmp_path), 2, autoreset_mode="Disabled")
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


SEEN = """
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


def seen_spec(folder: Path) -> gpu_envs.EnvSpec:
    box = gymnasium.spaces.Box
    return gpu_envs.EnvSpec(
        id="Seen-v0",
        header=rules_of(module(HEADER + SEEN, folder, "seen")),
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
    env = opened(seen_spec(tmp_path), 50, autoreset_mode="SameStep")
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
@pytest.mark.parametrize("spec_of", [seen_spec, kinds_spec])
def test_rules_in_python_pass_the_checker(spec_of: Any, tmp_path: Path) -> None:
    check_environment(spec_of(tmp_path), devices=["cpu"])


DRAWS = """
def reset(s: State, p: Params, random: Random) -> None:
    s.a = random.uniform(0, 1)
    s.b = random.uniform(0, 1)
    s.c = random.normal(0, 1)
    s.d = random.integer(100)
    s.e = random.integer(7)
    s.f = random.bits()

def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:
    return 0.0, False

def observe(s: State, p: Params, observation: Observation) -> None:
    observation[0] = s.a
"""

MIXED = """
def drawn(random: Random, n: int) -> int:
    return random.integer(n)

def reset(s: State, p: Params, random: Random) -> None:
    s.a = random.uniform(0, 1) - 2 * random.uniform(0, 1) * random.normal(0, 1)
    s.b = s.c = drawn(random, 100) - drawn(random, 7) / 3 + random.bits()
    s.d = 1 if s.a > 1000 and random.uniform(0, 1) > 0 else 0
    s.f = 0
    while random.uniform(0, 1) < 2:
        s.f += 1
        if s.f == 1:
            break
    s.e = random.uniform(random.uniform(0, 0), random.uniform(1, 1))
"""


def test_draws_come_in_their_order(tmp_path: Path) -> None:
    """Within an expression from left to right, and only where Python evaluates them."""
    spec = gpu_envs.EnvSpec(
        id="Draws-v0",
        header=rules_of(module(HEADER + DRAWS, tmp_path, "draws")),
        state=tuple("abcdef"),
        params={"unused": gpu_envs.Param(1.0)},
        observation=gymnasium.spaces.Box(-1, 1, (1,), np.float32),
        action=gymnasium.spaces.Discrete(2),
    )
    mixed = DRAWS.replace(DRAWS[: DRAWS.index("def step")], MIXED)
    other = dataclasses.replace(spec, id="Mixed-v0", header=rules_of(module(HEADER + mixed, tmp_path, "mixed")))
    one, two = opened(spec, 100, precision="float64"), opened(other, 100, precision="float64")
    for env in (one, two):
        env.reset(seed=5)
    s, t = one.state, two.state
    assert_same_bits(t["a"], s["a"] - 2 * s["b"] * s["c"])
    assert_same_bits(t["b"], s["d"] - s["e"] / 3 + s["f"])
    assert_same_bits(t["b"], t["c"])
    assert (t["d"] == 0).all()
    assert (t["f"] == 1).all()
    for env in (one, two):
        env.close()


RANDOM_FIELDS = 8

DRAWING = """
def minus(a: float, b: float) -> float:
    return a - 2 * b

def drawn(random: Random, scale: float) -> float:
    return scale * random.uniform(0, 1)

def reset(s: State, p: Params, random: Random) -> None:
    s.x, s.y, s.yes = 0, 0, False
    for k in range(4):
        s.cells[k] = 0
    {body}

def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:
    return 0.0, False

def observe(s: State, p: Params, observation: Observation) -> None:
    observation[0] = s.x
"""

ORDERS = [
    "s.x = (random.uniform(0, 1) if p.on else 0.0) - random.uniform(0, 1)",
    "s.x = minus(random.uniform(0, 1) if p.on else 0.0, random.uniform(0, 1) if p.on else 0.0)",
    "s.x = min(0.1 < random.uniform(0, 1) < 0.5, random.uniform(0, 1)) - random.uniform(0, 1)",
    "s.x = (1 if p.on and random.uniform(0, 1) < 0.5 else 0) + random.uniform(0, 1)",
    "s.x = (1 if not p.on or random.uniform(0, 1) < 0.5 or random.uniform(0, 1) < 0.5 else 0) + random.uniform(0, 1)",
    "s.x, s.y = random.uniform(0, 1) if p.on else 1, random.uniform(0, 1)",
    "s.yes = (p.on and random.uniform(0, 1) < 0.5) == (random.uniform(0, 1) < 0.3)",
    "s.x = minus(drawn(random, 1.0 if random.uniform(0, 1) < 0.5 else 2.0), drawn(random, 3) if p.on else 1)",
    "s.x = (random.uniform(0, 1) if random.uniform(0, 1) < 0.5 else -random.uniform(0, 1)) / random.uniform(0, 1)",
    "s.cells[int(random.uniform(0, 4))] += 2.0",
    "s.cells[int(random.uniform(0, 4))] -= random.uniform(0, 1)",
    "s.cells[int(random.uniform(0, 4))] //= 0.25",
    "s.cells[int(random.uniform(0, 4))] = random.uniform(0, 1)",
    "s.cells[int(random.uniform(0, 4))] = random.uniform(0, 1) if p.on else 1.0",
    "s.x, s.cells[int(random.uniform(0, 4))] = random.uniform(0, 1), random.uniform(0, 1)",
    "s.x = s.cells[int(random.uniform(0, 4))] = random.uniform(0, 1)",
    "a = [0] * 4; a[int(random.uniform(0, 4))] += random.uniform(0, 1); s.x = a[0] + 2 * a[1] + 3 * a[2] + 4 * a[3]",
    "if s.x > 1:\n        pass\n    elif (random.uniform(0, 1) if p.on else 0.0) < random.uniform(0, 1):\n"
    "        s.x = random.uniform(0, 1)",
]
"""Statements whose draws Python makes in an order that C++ leaves open, or has otherwise."""


class Drawn:
    """A source that gives these numbers."""

    def __init__(self, numbers: Iterator[float]) -> None:
        self.numbers = numbers

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * next(self.numbers)


def drawing_spec(body: str, folder: Path, state: Mapping[str, gpu_envs.Field]) -> tuple[gpu_envs.EnvSpec, Any]:
    made = module(HEADER + DRAWING.replace("{body}", body), folder, f"drawing{abs(hash(body))}")
    spec = gpu_envs.EnvSpec(
        id="Drawing-v0",
        header=rules_of(made),
        state={"x": gpu_envs.Field(), "y": gpu_envs.Field(), "yes": gpu_envs.Field("bool"), **state},
        params={"on": gpu_envs.Param(True)},
        observation=gymnasium.spaces.Box(-1, 1, (1,), np.float32),
        action=gymnasium.spaces.Discrete(2),
    )
    return spec, made


@pytest.mark.slow
def test_draws_come_in_pythons_order(tmp_path: Path) -> None:
    """Python runs the same functions, with the numbers that the device draws one after another."""
    count = len(ORDERS)
    cells = {"cells": gpu_envs.Field("real", 4)}
    body = "\n    ".join(f"s.r{k} = random.uniform(0, 1)" for k in range(RANDOM_FIELDS))
    plain, _ = drawing_spec(body, tmp_path, {**cells, **{f"r{k}": gpu_envs.Field() for k in range(RANDOM_FIELDS)}})
    env = opened(plain, 6, precision="float64")
    env.reset(seed=5)
    drawn = np.stack([np.array(env.state[f"r{k}"]) for k in range(RANDOM_FIELDS)], 1)
    env.close()
    wrong = []
    for n in range(count):
        spec, python = drawing_spec(ORDERS[n], tmp_path, cells)
        env = opened(spec, 6, precision="float64")
        env.reset(seed=5)
        for k, numbers in enumerate(drawn):
            s = types.SimpleNamespace(cells=[0.0] * 4)
            python.reset(s, types.SimpleNamespace(on=True), Drawn(iter(numbers.tolist())))
            made = [env.state[name][k].tolist() for name in ("x", "y", "yes", "cells")]
            if made != [s.x, s.y, s.yes, s.cells]:
                wrong.append(f"{ORDERS[n]}: {made} and not {[s.x, s.y, s.yes, s.cells]}")
                break
        env.close()
    assert wrong == []


def test_the_least_int_is_divided(tmp_path: Path) -> None:
    """By -1 too, where processors stop; what is too large begins anew from the other end."""
    body = "s.x = -2147483647 + int(s.y) - 1\n    m = int(s.x)\n    k = int(s.y) - 1\n    s.x, s.y = m // k, m % k"
    spec, _ = drawing_spec(body, tmp_path, {"cells": gpu_envs.Field("real", 4)})
    env = opened(spec, 2, precision="float64")
    env.reset(seed=0)
    assert np.array(env.state["x"]).tolist() == [-(2.0**31)] * 2
    assert np.array(env.state["y"]).tolist() == [0] * 2
    env.close()


NESTED = """
def made():
    def reset(s: State, p: Params, random: Random) -> None:
        '''Texts
may begin here.'''
# and comments
        s.a = s.b = s.c = s.d = s.e = s.f = 1

    return reset

reset = made()
"""


def test_nested_functions_with_lines_further_left(tmp_path: Path) -> None:
    text = HEADER + NESTED + DRAWS[DRAWS.index("def step") :]
    spec = dataclasses.replace(
        drawing_spec("pass", tmp_path, {})[0], header=rules_of(module(text, tmp_path)), state=tuple("abcdef")
    )
    assert "s.a = " in translated(spec, spec.check_params({}, 1))


def test_rules_are_never_run() -> None:
    for call in (lambda: rules.clip(1, 2, 3), lambda: rules.State().x, lambda: rules.Random().bits()):
        with pytest.raises(RuntimeError, match="never run by Python"):
            call()
    with pytest.raises(AttributeError, match="capitals"):
        rules.clamp  # noqa: B018
