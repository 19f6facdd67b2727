"""Mistakes of those who bring environments: each is told with the file and line, or the field, where it is."""

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from harness import Make
from nvrtc import compile_with_nvrtc, nvrtc_missing, programs

import gpu_envs
import gpu_envs.testing
from gpu_envs import CompileError, EnvSpec, Field, Param, Role, Table, TeamSpec

HEADER = """\
FN void reset(State& s, const Params& p, Random& random) {
    s.x = random.uniform(real(0), real(1));
    for (int k = 0; k < 4; ++k) s.marks[k] = 0;
}

FN Outcome step(State& s, const Params& p, const Action& action, Random&) {
    s.x += action == 1 ? p.stride : -p.stride;
    s.marks[action] += 1;
    return {s.x, s.x < 0};
}

FN void observe(const State& s, const Params&, Observation& observation) {
    observation[0] = s.x;
    observation[1] = float(s.marks[0]);
}
"""

SPEC = {
    "state": {"x": Field(), "marks": Field("int", 4)},
    "params": {"stride": Param(0.05)},
    "observation": Box(-np.inf, np.inf, (2,), np.float32),
    "action": Discrete(2),
    "max_episode_steps": 30,
}

TEAM_HEADER = """\
FN void reset(World& w, const Params&, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) w.x[i] = real(1 + i);
}

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) {
        w.x[i] -= real(actions[i]);
        w.reward[i] = w.x[i];
    }
}

FN void look(World&, const Params&, Team&) {}

FN void observe(const World& w, const Params&, int i, const Row& row) { row[0] = w.x[i]; }
"""

_NUMBERS = iter(range(10_000))


@final
class Broken:
    """Makes specs of headers in which one line is another."""

    def __init__(self, folder: Path) -> None:
        self.header = folder / "walker.cuh"

    def __call__(self, right: str = "", wrong: str = "", **changes: Any) -> EnvSpec:
        """A spec whose header has ``wrong`` where ``right`` was."""
        assert right in HEADER
        self.header.write_text(HEADER.replace(right, wrong, 1))
        settings: dict[str, Any] = {**SPEC, **changes}
        spec = EnvSpec(id=f"Walker{next(_NUMBERS)}-v0", header=self.header, **settings)
        gpu_envs.register(spec)
        return spec

    def team(self, right: str, wrong: str, **changes: Any) -> TeamSpec:
        """The same with a team."""
        assert right in TEAM_HEADER
        self.header.write_text(TEAM_HEADER.replace(right, wrong, 1))
        seen = Box(-np.inf, np.inf, (1,), np.float32)
        settings: dict[str, Any] = {
            "roles": (Role("walker", 2, seen, Discrete(2)), Role("sitter", 1, seen, Discrete(3))),
            "state": {"x": Field()},
            "params": {},
            "max_episode_steps": 30,
        }
        spec = TeamSpec(id=f"Walkers{next(_NUMBERS)}-v0", header=self.header, **(settings | changes))
        gpu_envs.register(spec)
        return spec

    def line_of(self, text: str) -> int:
        """The line of the header as it is now."""
        lines = self.header.read_text().splitlines()
        (found,) = [number for number, line in enumerate(lines, 1) if text in line]
        return found


@pytest.fixture
def broken(tmp_path: Path) -> Broken:
    return Broken(tmp_path)


def message_of(error: type[BaseException], call: Callable[[], object]) -> str:
    """What is said by what a call raises."""
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


# --- C++ ---

SYNTAX = ("s.x += action == 1 ? p.stride : -p.stride;", "s.x += action == 1 ? p.stride -p.stride;")
WRONG_FIELD = ("s.x = random.uniform", "s.xx = random.uniform")
WRONG_PARAM = ("p.stride : -p.stride", "p.strid : -p.stride")
MISTAKES = [
    pytest.param(*SYNTAX, "expected", id="syntax"),
    pytest.param(*WRONG_FIELD, "xx", id="field"),
    pytest.param(*WRONG_PARAM, "strid", id="parameter"),
]


@pytest.mark.parametrize(("right", "wrong", "named"), MISTAKES)
def test_the_compiler_of_the_cpu_names_file_and_line(broken: Broken, right: str, wrong: str, named: str) -> None:
    spec = broken(right, wrong)
    message = message_of(CompileError, lambda: gpu_envs.make(spec.id, device="cpu"))
    assert f"{broken.header}:{broken.line_of(wrong)}" in message
    assert named in message
    assert spec.id in message


@pytest.mark.skipif(bool(nvrtc_missing()), reason=nvrtc_missing())
@pytest.mark.parametrize(("right", "wrong", "named"), MISTAKES)
def test_nvrtc_names_file_and_line(broken: Broken, right: str, wrong: str, named: str) -> None:
    spec = broken(right, wrong)
    program = next(programs(spec.id, "SameStep", "float32"))
    message = message_of(CompileError, lambda: compile_with_nvrtc(program.source))
    assert re.search(rf"{re.escape(str(broken.header))}\({broken.line_of(wrong)}\): error", message)
    assert named in message


def test_a_header_that_is_not_there_is_named(broken: Broken) -> None:
    spec = dataclasses.replace(broken(), id="Headless-v0", header=broken.header.with_name("nowhere.cuh"))
    gpu_envs.register(spec)
    message = message_of(FileNotFoundError, lambda: gpu_envs.make("Headless-v0", device="cpu"))
    assert "nowhere.cuh" in message


# --- what the checker finds ---


@pytest.mark.slow
def test_a_write_beyond_an_array_is_found(broken: Broken) -> None:
    spec = broken("s.marks[action] += 1;", "s.marks[4 + action] += 1;")
    message = message_of(AssertionError, lambda: gpu_envs.testing.check_environment(spec, devices=("cpu",)))
    assert f"{broken.header.name}:{broken.line_of('4 + action')}" in message
    assert re.search(r"index [45] of .*, which has 4 elements", message)


@pytest.mark.slow
def test_an_observation_longer_than_its_space_is_found(broken: Broken) -> None:
    spec = broken("observation[1] =", "observation[2] =")
    message = message_of(Exception, lambda: gpu_envs.testing.check_environment(spec, devices=("cpu",)))
    assert f"{broken.header.name}:{broken.line_of('observation[2]')}" in message


@pytest.mark.slow
def test_all_that_is_wrong_is_listed(broken: Broken) -> None:
    """An observation outside its space, and a rule that remembers what it did."""
    right, counted = (
        "    s.x += action",
        "    static int calls = 0;\n    s.x += real(++calls % 7) * real(0.01);\n    s.x += action",
    )
    spec = broken(right, counted, observation=Box(0.0, 1.0, (2,), np.float32))
    check = functools.partial(gpu_envs.testing.check_environment, spec, devices=("cpu",), sanitize=False)
    message = message_of(AssertionError, check)
    assert "- cpu: observations lie in their spaces: the observation[" in message
    assert "widen the space in the spec" in message
    assert "- cpu: the same seed gives the same: " in message


# --- numbers that are none ---


def test_a_nan_names_replica_field_and_step(broken: Broken, make: Make) -> None:
    spec = broken(
        "return {s.x, s.x < 0};", "if (s.marks[1] == 3) s.x = square_root(real(-1));\n    return {s.x, false};"
    )
    env = make(spec.id, 5, device="cpu", checking=True)
    env.reset(seed=0)
    actions = np.zeros(5, np.int64)
    actions[3] = 1
    env.step(actions)
    env.step(actions)
    message = message_of(gpu_envs.NotFiniteError, lambda: env.step(actions))
    assert message.startswith(f"{spec.id}: replica 3, step 3 of its episode: 'x' of the state is nan")


def test_a_nan_of_a_team_names_the_agent(broken: Broken) -> None:
    spec = broken.team("w.reward[i] = w.x[i];", "w.reward[i] = log(w.x[i] + real(0.5));")
    env = gpu_envs.make(spec.id, 4, device="cpu", checking=True)
    env.reset(seed=0)
    still = {"walker": np.zeros((4, 2), np.int64), "sitter": np.zeros((4, 1), np.int64)}
    env.step(still)
    moving = {**still, "sitter": np.array([[0], [0], [2], [0]])}
    env.step(moving)
    message = message_of(gpu_envs.NotFiniteError, lambda: env.step(moving))
    assert message.startswith(f"{spec.id}: replica 2, sitter_0, step 3 of its episode: the reward is ")
    env.close()


@pytest.mark.slow
def test_the_checker_finds_a_nan(broken: Broken) -> None:
    spec = broken("observation[0] = s.x;", "observation[0] = log(s.x - real(0.5));")
    message = message_of(Exception, lambda: gpu_envs.testing.check_environment(spec, devices=("cpu",), sanitize=False))
    assert "the observation[0] is nan" in message


# --- specs ---

SPECS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "type": (lambda: {"state": {"x": Field("float")}}, "a field's type is 'float'; allowed: real, int, byte"),
    "length": (lambda: {"state": {"x": Field("int", 0)}}, "a field's length is 0; at least 1"),
    "agent": (lambda: {"state": {"x": Field("agent")}}, "the field 'x' is of type 'agent', which only a team has"),
    "name": (lambda: {"state": {"class": Field()}}, "the field 'class' must be a name in both C++ and Python"),
    "twice": (lambda: {"params": {"x": Param(1.0)}}, "['x'] named more than once among state, params"),
    "table": (lambda: {"tables": {"map": Table([[1.5]], "int")}}, "holds numbers that int32 cannot hold"),
    "text": (lambda: {"tables": {"map": Table("text")}}, "give numbers in one to three dimensions"),
}


@pytest.mark.parametrize("case", SPECS)
def test_a_spec_names_what_is_wrong(broken: Broken, case: str) -> None:
    changes, expected = SPECS[case]
    assert expected in message_of(ValueError, lambda: broken(**changes()))


SPACES: dict[str, tuple[dict[str, Any], str]] = {
    "actions": ({"action": Dict({"a": Discrete(2)})}, "action space"),
    "observations": ({"observation": Discrete(3)}, "observation space"),
    "double": ({"observation": Box(-1.0, 1.0, (2,), np.float64)}, "float64"),
    "mask": ({"action": Box(-1.0, 1.0, (2,), np.float32), "action_mask": True}, "action_mask"),
}


@pytest.mark.parametrize("case", SPACES)
def test_a_space_that_nothing_can_hold_is_refused(broken: Broken, case: str) -> None:
    changes, expected = SPACES[case]
    spec = broken(**changes)
    message = message_of(ValueError, lambda: gpu_envs.make(spec.id, device="cpu"))
    assert spec.id in message
    assert expected in message


def test_a_team_has_no_images(broken: Broken) -> None:
    image = Box(0, 255, (4, 4), np.uint8)
    spec = broken.team("", "", roles=(Role("walker", 3, image, Discrete(2)),))
    message = message_of(ValueError, lambda: gpu_envs.make(spec.id, device="cpu"))
    assert spec.id in message
    assert "walker" in message


# --- Python ---

PYTHON = """\
import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import EnvSpec, Field, Param, Rules


def reset(s, p, random):
    s.x = random.uniform(0.0, 1.0)
    for k in range(4):
        s.marks[k] = 0


def step(s, p, action, random):
    s.x += p.stride if action == 1 else -p.stride
    s.marks[action] += 1
    return s.x, s.x < 0.0


def observe(s, p, observation):
    observation[0] = s.x
    observation[1] = s.marks[0]


WALKER = EnvSpec(
    id="NAME",
    header=Rules(reset=reset, step=step, observe=observe),
    state={"x": Field(), "marks": Field("int", 4)},
    params={"stride": Param(0.05)},
    observation=Box(-np.inf, np.inf, (2,), np.float32),
    action=Discrete(2),
    max_episode_steps=30,
)
"""


def in_python(folder: Path, right: str = "", wrong: str = "") -> tuple[str, str]:
    """A spec in Python with a line that is wrong: the environment's id, and the line as messages name it."""
    assert right in PYTHON
    file, text = folder / "walker.py", PYTHON.replace("NAME", f"PythonWalker{next(_NUMBERS)}-v0")
    text = text.replace(right, wrong, 1)
    file.write_text(text)
    line = text[: text.index(wrong)].count("\n") + 1
    return gpu_envs.spec(f"{file}:WALKER").id, f'"{file}", line {line}'


REFUSED = [
    pytest.param("s.x += p.stride if", "s.xx += p.stride if", "'xx'", id="field"),
    pytest.param("s.x += p.stride if", "s.x += p.strid if", "'strid'", id="parameter"),
    pytest.param("return s.x, s.x < 0.0", "return sum([s.x]), s.x < 0.0", "Write a loop", id="list"),
    pytest.param(
        "    s.marks[action] += 1", "    s.marks[action] = s.x", "Write int(...), or make the field real", id="type"
    ),
    pytest.param("    s.marks[action] += 1", "    print(s.x)", "Look at env.state from outside", id="call"),
    pytest.param("return s.x, s.x < 0.0", "return s.x", "Write return reward, terminated", id="return"),
]


@pytest.mark.parametrize(("right", "wrong", "named"), REFUSED)
def test_python_that_cannot_be_translated_names_file_and_line(
    tmp_path: Path, right: str, wrong: str, named: str
) -> None:
    name, line = in_python(tmp_path, right, wrong)
    message = message_of(gpu_envs.TranslationError, lambda: gpu_envs.make(name, device="cpu"))
    assert line in message
    assert named in message
    assert wrong.strip() in message


@pytest.mark.slow
def test_a_write_beyond_an_array_in_python_is_found(tmp_path: Path) -> None:
    name, line = in_python(tmp_path, "s.marks[action] += 1", "s.marks[action + 4] += 1")
    spec = gpu_envs.spec(name)
    message = message_of(AssertionError, lambda: gpu_envs.testing.check_environment(spec, devices=("cpu",)))
    assert re.sub('", line ', ":", line).rpartition("/")[2] in message


def test_a_nan_in_python_names_replica_field_and_step(tmp_path: Path) -> None:
    name, _ = in_python(tmp_path, "s.x += p.stride if action == 1 else -p.stride", "s.x = s.x / (s.x - s.x)")
    env = gpu_envs.make(name, 3, device="cpu", checking=True)
    env.reset(seed=0)
    message = message_of(gpu_envs.NotFiniteError, lambda: env.step(np.zeros(3, np.int64)))
    assert message.startswith(f"{name}: replica 0, step 1 of its episode: 'x' of the state is inf")
    env.close()
