"""Messages for rules that do not compile: the same with every compiler, starting with the author's line."""

import importlib.util
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from harness import IDS, TEAM_IDS
from nvrtc import H200, nvrtc_missing, programs, ptx_of

import gpu_envs
from gpu_envs import EnvSpec, Field, Param, Role, Spec, Table, TeamSpec
from gpu_envs.backend import messages
from gpu_envs.backend.diagnostics import diagnostics
from gpu_envs.backend.host import HostBackend
from gpu_envs.backend.program import Device, Program
from gpu_envs.backend.toolchain import ZIG_OPTIONS
from gpu_envs.cli import MISTAKE, main
from gpu_envs.errors import CompileError

HEADER = """\
FN void reset(State& s, const Params& p, Random& random) {
    s.x     = random.uniform(-p.start, p.start);
    s.speed = real(0);
}
FN Outcome step(State& s, const Params& p, const Action& action, Random&) {
    s.speed += p.tau * real(action - 1);
    s.x += p.tau * s.speed;
    return {real(1), s.x > real(1) || s.x < real(-1)};
}
FN void observe(const State& s, const Params&, Observation& observation) {
    observation[0] = s.x;
    observation[1] = s.speed;
}
"""

TEAM_HEADER = """\
FN void reset(World& w, const Params& p, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) {
        w.x[i] = p.start;
        if (i == 0) w.pull = 0;
    }
}
FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) {
        w.x[i] += real(actions[i]);
        add(w.pull, actions[i]);
    }
}
FN void look(World&, const Params&, Team&) {}
FN void observe(const World& w, const Params& p, int i, const Row& row) { row[0] = float(w.x[i]); }
"""


def one(header: Any) -> EnvSpec:
    return EnvSpec(
        id="Broken-v0",
        header=header,
        state=("x", "speed"),
        params={"start": Param(0.1), "tau": Param(0.02)},
        tables={"slope": Table([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])},
        observation=Box(-2, 2, (2,), np.float32),
        action=Discrete(3),
        max_episode_steps=20,
    )


def team(header: Any) -> TeamSpec:
    return TeamSpec(
        id="BrokenTeam-v0",
        header=header,
        roles=(Role("rower", 3, Box(-2, 2, (1,), np.float32), Discrete(3)),),
        state={"x": Field()},
        shared={"pull": Field("int")},
        params={"start": Param(0.1)},
    )


def program(spec: Spec, *, on_gpu: bool) -> Program:
    return next(programs(spec, "SameStep", "float32", device=H200 if on_gpu else Device(on_gpu=False)))


def with_nvrtc(spec: Spec) -> None:
    compiled = program(spec, on_gpu=True)
    messages.check_device_functions(compiled, "NVRTC")
    try:
        ptx_of(compiled.source)
    except CompileError as error:
        raise messages.compile_error(compiled, error.output, "NVRTC") from error


Compile = Callable[[Spec], object]


@pytest.fixture(params=["the_machines_compiler", "clang", "zig", "nvrtc"])
def compiling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Compile:
    """Compiles a spec with each installed compiler."""
    if request.param == "nvrtc":
        if nvrtc_missing():
            pytest.skip(nvrtc_missing())
        return with_nvrtc
    if request.param == "clang":
        if not shutil.which("clang++"):
            pytest.skip("clang is not installed")
        monkeypatch.setenv("CXX", "clang++")
    if request.param == "zig":
        if not importlib.util.find_spec("ziglang"):
            pytest.skip("ziglang is not installed")
        monkeypatch.setenv("CXX", shlex.join((sys.executable, "-m", "ziglang", *ZIG_OPTIONS)))
    return lambda spec: HostBackend().load(program(spec, on_gpu=False))


def error_message(
    make: Callable[[Any], Spec], text: str, folder: Path, compiling: Compile, patch: pytest.MonkeyPatch
) -> str:
    patch.chdir(folder)
    header = folder / "my_env.cuh"
    header.write_text(text)
    with pytest.raises(CompileError) as caught:
        compiling(make(header))
    assert caught.value.output
    *message, last = str(caught.value).splitlines()
    assert last.startswith(f"({make(header).id} did not compile with ")
    return "\n".join(message)


MARKED = "    s.speeed += p.tau * real(action - 1);\n      ^"
FIELDS = "Its fields are: x, speed"


OBSERVE = "    FN void observe(const State& s, const Params& p, Observation& observation)"
LOOK = "    FN void look(World& w, const Params& p, Team& team)"
WRONG_SIGNATURE = "has the wrong arguments or return type"

CASES = [
    (
        "s.speed += p",
        "s.speeed += p",
        f"6: error: State has no field 'speeed'. Did you mean 'speed'? {FIELDS}\n{MARKED}",
    ),
    (
        "uniform(-p.start",
        "uniform(-p.strat",
        "2: error: Params has no field 'strat'. Did you mean 'start'? Its fields are",
    ),
    (".uniform", ".uniforn", "2: error: Random has no function 'uniforn'. Did you mean 'uniform'? Its functions are: "),
    (
        "p.tau * s.speed",
        "tau * s.speed",
        "7: error: there is no 'tau' here; the field of Params is p.tau\n    s.x += tau * s.speed;\n           ^",
    ),
    (
        "p.tau * s.speed",
        "sqrt(s.speed)",
        "7: error: there is no 'sqrt' in rules; use 'square_root'\n    s.x += sqrt(s.speed);\n           ^",
    ),
    ("p.tau * s.speed", "__sinf(s.speed)", "7: error: there is no '__sinf' in rules; use 'sin'"),
    ("p.tau * s.speed", "fmaxf(s.x, s.speed)", "7: error: there is no 'fmaxf' in rules; use 'maximum'"),
    ("p.tau * s.speed", "frictoin", "7: error: there is no 'frictoin' here.\n"),
    (
        "p.tau * s.speed",
        "p.slope(0, 1, 2)",
        "7: error: three indices for an array that has not three dimensions\n    s.x += p.slope(0, 1, 2);",
    ),
    ("real(0);", "std::sqrt(1);", "3: error: rules cannot use the standard library; "),
    ("FN void reset", "#include <cmath>\nFN void reset", "1: error: rules cannot include headers; "),
    ("s.x     = random", "s.x = = random", "2: error: expected "),
    ("observation[1] = s.speed;\n}\n", "", "10: error: this '{' has no '}'\n    FN void observe("),
    ("real(0);\n}\n", "real(0);\n", "1: error: this '{' has no '}'\n    FN void reset("),
    ("real(0);\n}\n", "real(0);\n}}\n", "4: error: this '}' has no '{'\n    }}"),
    ("FN void observe(", "FN void look_around(", f" has no function observe: it needs\n{OBSERVE}"),
    (
        "const State& s, const Params&, Obs",
        "const State& s, Obs",
        f"10: error: observe {WRONG_SIGNATURE}\n    FN void observe(const State& s, Observation& observation) {{\n"
        f"  it needs\n{OBSERVE}",
    ),
]
"""Correct text, the wrong text that replaces it, and the message after the file name."""

TEAM_CASES = [
    ("w.pull, act", "w.pul, act", "10: error: World has no field 'pul'. Did you mean 'pull'? Its fields are: "),
    (
        "AGENTS) {\n        w.x[i] +=",
        "AGENTZ) {\n        w.x[i] +=",
        "8: error: there is no 'AGENTZ' here. Did you mean 'AGENTS'?\n    FOR_EACH_AGENT(i, AGENTZ) {",
    ),
    ("FN void look(World&, const Params&, Team&) {}\n", "", f" has no function look: it needs\n{LOOK}"),
    ("int i, const Row& row", "int i, Row& row", f"14: error: observe {WRONG_SIGNATURE}"),
]


@pytest.mark.fast_cases(34)
@pytest.mark.parametrize(
    ("kind", "header", "right", "wrong", "expected"),
    [*((one, HEADER, *case) for case in CASES), *((team, TEAM_HEADER, *case) for case in TEAM_CASES)],
    ids=[*(f"one-{number}" for number in range(len(CASES))), *(f"team-{number}" for number in range(len(TEAM_CASES)))],
)
def test_messages_start_with_the_author_s_line(
    kind: Any,
    header: str,
    right: str,
    wrong: str,
    expected: str,
    compiling: Compile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert header.count(right) == 1
    message = error_message(kind, header.replace(right, wrong), tmp_path, compiling, monkeypatch)
    assert re.match(r"my_env\.cuh:?", message)
    assert message.removeprefix("my_env.cuh").removeprefix(":").startswith(expected)


@pytest.mark.slow  # 3 s and more of a compiler's time without its cache
def test_correct_rules_compile(compiling: Compile, tmp_path: Path) -> None:
    header = tmp_path / "my_env.cuh"
    with_ceil = "FN real ceil(real x) { return -round_down(-x); }\n"  # rules may define functions of any name
    with_ceil += HEADER.replace("p.tau * s.speed", "ceil(s.speed)")
    for make, text in ((one, HEADER), (team, TEAM_HEADER), (one, with_ceil)):
        header.write_text(text)
        compiling(make(header))


@pytest.mark.parametrize("env_id", [*IDS, *TEAM_IDS])
def test_builtin_rules_call_no_device_only_functions(env_id: str) -> None:
    messages.check_device_functions(program(gpu_envs.spec(env_id), on_gpu=True), "NVRTC")


def test_many_errors_are_counted(compiling: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "".join(f"    s.x{number} = real(0);\n" for number in range(9))
    message = error_message(one, HEADER.replace("    s.speed = real(0);\n", wrong), tmp_path, compiling, monkeypatch)
    assert message.count("error: State has no field") == messages.MAX_ERRORS
    assert message.endswith("and 4 more")


def test_a_declared_but_undefined_function_is_named(
    compiling: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"FN void helper(State& s);\n{HEADER.replace('real(0);', 'real(0); helper(s);')}"
    assert "helper" in error_message(one, text, tmp_path, compiling, monkeypatch)


# clang's output, for machines without clang
CLANG = """\
my_env.cuh:6:7: error: no member named 'speeed' in 'gpu_envs::State'
    6 |     s.speeed += p.tau * real(action - 1);
      |     ~ ^
my_env.cuh:8:15: error: use of undeclared identifier 'start'; did you mean 'stat'?
    8 |     s.x += start;
      |            ^~~~~
tile.cuh:21:98: error: function definition is not allowed here
   21 |                                         Index base, u64 launch, bool frozen_too, const Env& env) {
      |                                                                                                  ^
2 errors generated.
"""


def test_output_of_clang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_env.cuh").write_text(HEADER.replace("s.speed += p", "s.speeed += p"))
    log = CLANG.replace("my_env.cuh", str(tmp_path / "my_env.cuh"))
    error = messages.compile_error(program(one(tmp_path / "my_env.cuh"), on_gpu=False), log, "clang")
    first = f"my_env.cuh:6: error: State has no field 'speeed'. Did you mean 'speed'? {FIELDS}\n"
    assert str(error).startswith(first)
    assert "my_env.cuh:8: error: there is no 'start' here; the field of Params is p.start\n" in str(error)
    assert "tile.cuh" not in str(error)
    assert error.output == log


@pytest.mark.parametrize(
    "wording",
    [
        "static assertion failed: two indices for 'slope'",  # g++
        """static_assert failed due to requirement 'Params::is("x") == 2' "two indices for 'slope'\"""",  # clang to 16
        """static_assert failed "two indices for 'slope'\"""",
        "static assertion failed due to requirement '2 == DIMENSIONS': two indices for 'slope'",  # clang from 17
        """static assertion failed with "two indices for 'slope'\"""",  # NVRTC
        "static assertion failed due to requirement '1 == 2'",
    ],
    ids=["g++", "clang-14", "clang-14-plain", "clang-17", "nvrtc", "no message"],
)
def test_the_message_of_a_static_assertion_is_shown(wording: str) -> None:
    (error,) = diagnostics(f"my_env.cuh:7:13: error: {wording}\n", "my_env.cuh")
    assert (error.line, error.text) == (7, "two indices for 'slope'" if "slope" in wording else wording)


def test_the_command_line_shows_it_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_env.cuh").write_text(HEADER.replace("s.speed += p", "s.speeed += p"))
    (tmp_path / "my_env.py").write_text(
        "import numpy as np\nfrom gymnasium.spaces import Box, Discrete\nfrom gpu_envs import EnvSpec, Param\n"
        "MY_ENV = EnvSpec(id='BrokenByHand-v0', header='my_env.cuh', state=('x', 'speed'), action=Discrete(3),\n"
        "    params={'start': Param(0.1), 'tau': Param(0.02)}, observation=Box(-2, 2, (2,), np.float32))\n"
    )
    assert main(["bench", "my_env.py", "--device=cpu", "--num-envs=2"]) == MISTAKE
    assert capsys.readouterr().err.startswith(
        "gpu-envs: error: my_env.cuh:6: error: State has no field 'speeed'. Did you mean 'speed'? Its fields"
    )
