"""``check_environment`` reports mistakes in broken environments with their place, and passes correct ones."""

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from small_envs import CHASE, WALK, chase, check_message, walk

import gpu_envs
from gpu_envs.codegen import AUTORESET_MODES
from gpu_envs.errors import display
from gpu_envs.pictures import Drawing, Picture, at, disc
from gpu_envs.testing import CheckError, builds, check_environment, ends, probe, sameness, values
from gpu_envs.testing import cross_compile as elsewhere
from gpu_envs.testing.portable import to_bytes
from gpu_envs.testing.report import FailedError, Report
from gpu_envs.testing.subject import Subject


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary compilation cache: the sources name temporary files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_ENVS_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def line_of(spec: Any, text: str) -> str:
    """File and line of a line of the header, as in a message."""
    lines = [line.strip() for line in spec.header.read_text().splitlines()]
    return f"{spec.header}:{lines.index(text) + 1}: "


@pytest.mark.slow
@pytest.mark.parametrize("make", [walk, chase])
def test_correct_environments_pass(tmp_path: Path, make: Callable[..., Any]) -> None:
    told: list[str] = []
    report = check_environment(make(tmp_path), devices=["cpu"], report=told.append)
    assert report.failures == []
    assert told[:-1] == [str(line) for line in report.lines]
    assert told[-1].startswith(f"{report.env_id}: ")
    assert {line.outcome for line in report.lines} == {"passed", "skipped"}


def test_the_report_lists_failures() -> None:
    def complain() -> str:
        raise FailedError("x is 3; expected 4")

    told: list[str] = []
    report = Report("Walk-v0", told.append)
    assert report.run("one", lambda: "it is well")
    assert not report.run("two", complain)
    report.skip("three", "there is no third")
    with pytest.raises(CheckError, match=r"^Walk-v0 failed 1 of 3 checks:\n- two: x is 3; expected 4$"):
        report.finish()
    assert told == [
        "passed   one: it is well",
        "failed   two: x is 3; expected 4",
        "skipped  three: there is no third",
        "Walk-v0: 1 passed, 1 failed, 1 skipped",
    ]


@pytest.mark.slow
def test_all_failures_are_listed(tmp_path: Path) -> None:
    """An observation outside its space, and rules with static variables."""
    step = "static int calls = 0;\n    s.x += real(++calls % 7);\n    return {0, false};"
    spec = walk(tmp_path, step=step, more={"observation": spaces.Box(0, 1, (2,), np.float32)})
    with pytest.raises(AssertionError) as caught:
        check_environment(spec, devices=["cpu"], sanitize=False)
    assert "- cpu: observations are in their spaces: the observation[" in str(caught.value)
    assert "widen the space in the spec" in str(caught.value)
    assert "- cpu: the same seed gives the same results: " in str(caught.value)


def test_compile_errors_end_the_checks(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(CheckError, match=r"walk\.cuh:6: error: State has no field 'y'"):
        check_environment(walk(tmp_path, step="s.y = 0;\n    return {0, false};"), devices=["cpu"], report=told.append)
    assert [line[:7] for line in told] == ["failed ", "Walk-v0"]


UNMARKED = "real twice(real x) {\n    return x * 2;\n}\n"


def test_a_function_without_fn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = walk(tmp_path, step="s.x = twice(s.x);\n    return {0, false};")
    spec.header.write_text(UNMARKED + spec.header.read_text())
    good, team = walk(tmp_path, "Good-v0"), chase(tmp_path)
    if elsewhere.has_nvrtc():
        assert check_message(elsewhere.for_cuda, spec).startswith(
            f"{spec.header}:1: error: this function is not marked FN"
        )
        assert check_message(elsewhere.for_cuda, good) == check_message(elsewhere.for_cuda, team) == ""
    monkeypatch.setattr(elsewhere, "has_nvrtc", lambda: False)
    assert check_message(elsewhere.for_cuda, spec).startswith(f"{spec.header}:1: error: this function is not marked FN")
    assert check_message(elsewhere.for_cuda, good) == check_message(elsewhere.for_cuda, team) == ""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("struct A {\n    int x[3] = {1, 2, 3};\n    int get() const { return x[0]; }\n};", [(3, "get")]),
        ("template <class T>\nFN T f(T x) { return x; }\nconstexpr int N[] = {1, 2};", []),
        ("#define F(x) g(x) { }\n// int f() { }\nenum E { A, B };\nconstexpr int g() { return 1; }", [(4, "g")]),
        ("FN void f() { const auto h = [&](int i) { return i; }; if (h(1)) { } }", []),
    ],
)
def test_finding_functions_without_fn(text: str, found: list[tuple[int, str]]) -> None:
    assert list(elsewhere.unmarked(text)) == found


# --- indices outside an array, and undefined behaviour ---

PARTS = spaces.Dict({"near": spaces.Box(0, 9, (2, 2), np.int32), "far": spaces.Box(0, 255, (3,), np.uint8)})
BAG = {"state": {"x": gpu_envs.Field(), "bag": gpu_envs.Field("byte", 2)}}
SLOPE = "s.x += p.slope[int(s.x * real(8) + real(8))];"


def astray(tmp_path: Path, line: str) -> Any:
    """A walk with tables and an array, with a line that indexes outside them."""
    return walk(
        tmp_path,
        more={
            "state": {"x": gpu_envs.Field(), "pace": gpu_envs.Field(), "cells": gpu_envs.Field("int", 9)},
            "tables": {
                "slope": gpu_envs.Table([0.5, 0.25, 0.125]),
                "ground": gpu_envs.Table([[1, 2], [3, 4], [5, 6]], "int"),
            },
        },
        reset=WALK["reset"] + "\n    for (int j = 0; j < 9; ++j) s.cells[j] = 0;",
        step=f"s.x += real(action) - real(0.1);\n    {line}\n    return {{0, s.x > real(9)}};",
    )


OUTSIDE: dict[str, tuple[Callable[[Path, str], Any], str, str]] = {
    "table": (astray, SLOPE, "of 'slope', which has 3 elements"),
    "map": (astray, "s.x += p.ground(1, int(s.x * real(8)) + 4);", "of 'ground', which has 2 elements"),
    "array": (astray, "s.cells[int(s.x * real(2)) + 4] = 1;", "of 'cells', which has 9 elements"),
    "an array of an agent": (
        lambda folder, line: chase(
            folder, more=BAG, reset=CHASE["reset"] + f"\n    FOR_EACH_AGENT(i, AGENTS) {{\n{line}\n}}"
        ),
        "for (int k = 0; k < 3; ++k) w.bag[i * 2 + k] = 1;",
        "8 of 'bag', which has 8 elements",
    ),
    "row": (
        lambda folder, line: chase(folder, observe=f"{CHASE['observe']}\n    {line}"),
        "if (i > 0) row[2] = 0;",
        "2 of 'the row of observations', which has 2 elements",
    ),
    "observation": (
        lambda folder, line: walk(folder, observe=f"{WALK['observe']}\n    {line}"),
        "for (int j = 2; j < 4; ++j) observation[j] = 0;",
        "2 of 'the observation', which has 2",
    ),
    "a part of an observation": (
        lambda folder, line: walk(folder, more={"observation": PARTS}, observe=line),
        "for (int j = 0; j < 4; ++j) observation.far[j] = 0;",
        "3 of 'far', which has 3 elements",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "line", "what"), OUTSIDE.values(), ids=OUTSIDE)
def test_an_index_outside_an_array(tmp_path: Path, make: Callable[[Path, str], Any], line: str, what: str) -> None:
    spec = make(tmp_path, line)
    found = check_message(builds.undefined_values, spec)
    assert found.startswith(f"{line_of(spec, line)}index ")
    assert what in found


@pytest.mark.slow
def test_indices_outside_an_array_are_checked_first(tmp_path: Path) -> None:
    """Because it could crash the test process."""
    told: list[str] = []
    with pytest.raises(CheckError, match="of 'slope'"):
        check_environment(astray(tmp_path, SLOPE), devices=["cpu"], sanitize=False, report=told.append)
    assert told[-2] == "skipped  cpu: all other checks: the failure could crash this process: fix it first"


@pytest.mark.slow
def test_an_index_outside_a_field_of_a_team(tmp_path: Path) -> None:
    """The next replica's memory follows the last agent's: no sanitizer can detect it."""
    line = "w.x[i + 1] = w.x[i];"
    spec = chase(
        tmp_path, step=CHASE["step"].replace("w.reward[i] = w.x[i];", f"w.reward[i] = w.x[i];\n        {line}")
    )
    found = check_message(builds.undefined_values, spec)
    assert found.startswith(f"{line_of(spec, line)}index 4 of 'x', which has 4 elements")
    assert builds.sanitizer("asan") == "" or check_message(builds.sanitized, spec) == found


def test_flags_are_tried_on_code_that_is_not_optimised_away() -> None:
    """If the compiler may remove the code, a sanitizer without run-time library seems to work."""
    assert not builds.accepts(("-fsanitize=shift", "-nodefaultlibs"))
    assert builds.accepts(("-nodefaultlibs",))


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["", "clang++"])
def test_undefined_behaviour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    if compiler and not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    if compiler:
        monkeypatch.setenv("CXX", compiler)
        if sys.platform == "linux" and not builds.sanitizer("ubsan"):
            pytest.skip(f"{compiler} has no sanitizers here")
    line = "s.x += real(7 / n);"
    spec = walk(tmp_path, step=f"const int n = int(s.pace * real(4)) - 1;\n    {line}\n    return {{0, false}};")
    assert check_message(builds.sanitized, spec) == f"{line_of(spec, line)}division by zero"


@pytest.mark.slow
def test_an_endless_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment does not run in this process, which it would block for ever."""
    spec = walk(
        tmp_path, step="volatile bool stuck = action == 1;\n    while (stuck) s.x += 1;\n    return {0, false};"
    )
    monkeypatch.setattr(builds, "_LIMIT_S", 6)
    told: list[str] = []
    with pytest.raises(CheckError, match=r"Walk-v0: step [1-9] \(SameStep\) did not end within 6 s") as caught:
        check_environment(spec, devices=["cpu"], report=told.append, sanitize=False)
    assert "failed 1 of " in str(caught.value)
    assert "fix it first" in "\n".join(told)


@pytest.mark.slow
def test_a_mistake_in_inactive_replicas(tmp_path: Path) -> None:
    """SameStep has no inactive replicas; in the other modes one waits."""
    line = "s.x = real(8 / (4 - int(s.pace)));"
    spec = walk(
        tmp_path,
        reset=WALK["reset"] + "\n    s.pace = 0;",
        step=f"{line}\n    s.pace += real(1);\n    return {{0, s.pace > real(3)}};",
    )
    assert check_message(builds.sanitized, spec) == f"{line_of(spec, line)}division by zero"


def test_every_autoreset_mode_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    subject = Subject(walk(tmp_path), 9, 40, 0, {})
    plan = probe.Plan(to_bytes(subject.spec, {}, tmp_path), {}, 3, 4, 7, 0, "cpu", ((),))
    assert probe.run_builds(plan) == ""
    places = ["the first reset", *(f"step {t}" for t in range(1, 5))]
    expected = [f"{probe.PROGRESS}{place} ({mode})" for mode in AUTORESET_MODES for place in places]
    long = ["the first reset", *(f"step {t} of a long run" for t in range(1, 8))]
    expected += [f"{probe.PROGRESS}{place} (SameStep)" for place in long]
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(expected)


# --- uninitialised values ---

IMAGE = spaces.Dict({"place": spaces.Box(-8, 8, (1,), np.float32), "image": spaces.Box(0, 255, (4, 5), np.uint8)})


@pytest.mark.slow
def test_a_field_that_reset_does_not_set(tmp_path: Path) -> None:
    found = check_message(builds.undefined_values, walk(tmp_path, reset="s.x = random.uniform(real(-1), real(1));"))
    assert "pace of replica" in found
    assert "reset must set every field" in found


@pytest.mark.slow
def test_a_field_of_a_team_that_reset_does_not_set(tmp_path: Path) -> None:
    spec = chase(tmp_path, reset="FOR_EACH_AGENT(i, AGENTS) { w.x[i] = team.random(RESET, i).uniform(0, 10); }")
    assert "state.caught of replica" in check_message(sameness.resets, spec, "cpu")
    assert "state.caught of replica" in check_message(builds.undefined_values, spec)


@pytest.mark.slow
def test_an_uninitialised_local_variable(tmp_path: Path) -> None:
    spec = walk(
        tmp_path, step="real push;\n    if (action == 1) push = s.pace;\n    s.x += push;\n    return {0, false};"
    )
    assert "state.x of replica" in check_message(builds.undefined_values, spec)


@pytest.mark.slow
def test_uninitialised_scratch(tmp_path: Path) -> None:
    broken = CHASE["step"] + "\n    FOR_EACH_AGENT(i, AGENTS) w.reward[i] = w.near[i];"
    spec = chase(tmp_path, more={"scratch": {"near": gpu_envs.Field()}}, step=broken)
    assert "rewards." in check_message(builds.undefined_values, spec)


@pytest.mark.slow
def test_a_look_that_depends_on_step(tmp_path: Path) -> None:
    more = {"shared_scratch": {"mark": gpu_envs.Field()}}
    broken = CHASE["step"] + "\n    FOR_EACH_AGENT(i, 1) w.mark = real(w.elapsed);"
    spec = chase(tmp_path, more=more, step=broken, observe="row[0] = float(w.mark);\n    row[1] = 0;")
    assert "observations.hunter" in check_message(builds.undefined_values, spec)


@pytest.mark.slow
def test_a_partly_written_row(tmp_path: Path) -> None:
    found = check_message(builds.undefined_values, chase(tmp_path, observe="row[0] = 1;\n    if (i < 2) row[1] = 0;"))
    assert "after reset" in found
    assert "element [1] of the observation 'prey' of replica 0, prey_1 was not written: observe must write" in found


@pytest.mark.slow
def test_a_partly_written_key(tmp_path: Path) -> None:
    paint = "observation.place[0] = 0;\n    for (int j = 0; j < 20; ++j) if (j != 7) observation.image[j] = 1;"
    found = check_message(builds.undefined_values, walk(tmp_path, more={"observation": IMAGE}, observe=paint))
    assert "element [1][2] of the observation 'image' of replica 0 was not written" in found
    found = check_message(builds.undefined_values, walk(tmp_path, "Short-v0", observe="observation[1] = 0;"))
    assert "observations[0] of replica 0" in found


def test_rules_with_static_variables(tmp_path: Path) -> None:
    spec = walk(tmp_path, step="static int calls = 0;\n    s.x += real(++calls % 7);\n    return {0, false};")
    for check in (sameness.seeds, sameness.independence, sameness.round_trip):
        assert check_message(check, spec, "cpu"), check


# --- values ---


def test_an_agents_observation_outside_its_space(tmp_path: Path) -> None:
    spec = chase(tmp_path, observe="row[0] = i == 2 ? -1.0f : 0.0f;\n    row[1] = 0;")
    assert "'prey'[0] of replica 0, prey_1 is -1.0 after reset" in check_message(values.spaces, spec, "cpu")


TEAM_MASK = "FN void allow(const World& w, const Params& p, int i, const Mask& mask) {\n    BODY\n}\n"
MASK = "FN void allow(const State& s, const Params& p, Mask& mask) {\n    BODY\n}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "allow", "none", "who", "some", "outside"),
    [
        (walk, MASK, "mask[0] = mask[1] = s.x < real(2);", "replica ", "mask[0] = s.x > real(0);", "mask[2] = false;"),
        (
            chase,
            TEAM_MASK,
            "for (int a = 0; a < 3; ++a) mask[a] = i != 2 || w.elapsed != 3;",
            "replica 0, prey_1 has no possible choice in step 3: allow must leave at least one choice of 3",
            "mask[0] = w.x[i] > real(1);",
            "mask[3] = false;",
        ),
    ],
    ids=["one agent", "team"],
)
def test_masks(
    tmp_path: Path, make: Callable[..., Any], allow: str, none: str, who: str, some: str, outside: str
) -> None:
    more = {"action_mask": True}
    empty = make(tmp_path, "Empty-v0", more=more, further=allow.replace("BODY", none))
    assert who in check_message(values.masks, empty, "cpu")
    good = make(tmp_path, "Good-v0", more=more, further=allow.replace("BODY", some))
    assert check_message(values.masks, good, "cpu") == ""
    assert check_message(sameness.independence, good, "cpu") == ""
    assert check_message(builds.undefined_values, good) == ""
    broken = make(tmp_path, "Wide-v0", more=more, further=allow.replace("BODY", outside))
    assert "of 'the action mask', which has " in check_message(builds.undefined_values, broken)


def test_a_mask_of_a_wrong_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "choices", lambda _: [5])
    spec = walk(tmp_path, more={"action_mask": True}, further=MASK.replace("BODY", "mask[0] = true;"))
    assert "a defect of gpu_envs, not of the rules; please report it" in check_message(values.masks, spec, "cpu")


@pytest.mark.slow
def test_several_observations_pass(tmp_path: Path) -> None:
    paint = (
        "observation.place[0] = float(s.x);\n    for (int j = 0; j < 20; ++j) observation.image[j] = u8(j + int(s.x));"
    )
    spec = walk(tmp_path, more={"observation": IMAGE}, observe=paint)
    alike = (sameness.seeds, sameness.independence, sameness.observations, sameness.rollouts)
    for check in (values.spaces, *alike, ends.episode_ends):
        assert check_message(check, spec, "cpu") == "", check
    assert check_message(builds.undefined_values, spec) == ""
    small = spaces.Dict({"place": IMAGE["place"], "image": spaces.Box(0, 5, (4, 5), np.uint8)})
    found = check_message(values.spaces, walk(tmp_path, more={"observation": small}, observe=paint), "cpu")
    assert found.startswith("the observation 'image'[")


def test_a_picture_of_nothing(tmp_path: Path) -> None:
    def draw(state: Any, params: Any) -> Picture:
        del params
        with np.errstate(all="ignore"):
            centres = np.stack([state["x"] / 0.0, state["x"]], -1)[:, None]
        return Picture((-1, -1, 1, 1), (disc(centres, 0.1, (0, 0, 0)),))

    spec = walk(tmp_path, more={"drawing": Drawing(draw)})
    assert "shape 0, a disc, of replica 0 has positions that are not finite" in check_message(
        values.drawing, spec, "cpu"
    )


@pytest.mark.parametrize(
    ("replicas", "message"),
    [
        (slice(1), "shape 1, a disc, of replica 1 differs before step 1 when the replica is drawn alone"),
        (slice(-2, None), "the drawing returned a picture of 2 replicas for the states of "),
    ],
)
def test_a_picture_of_other_replicas(tmp_path: Path, replicas: slice, message: str) -> None:
    """A shape of one replica is repeated for all: only shapes that do not depend on the state may be."""

    def draw(state: Any, params: Any) -> Picture:
        del params
        shared = disc((0, 0), 0.1, (0, 0, 0))
        return Picture((-1, -1, 1, 1), (shared, disc(at(state["x"][replicas], 0), 0.1, (0, 0, 0))))

    assert message in check_message(values.drawing, walk(tmp_path, more={"drawing": Drawing(draw)}), "cpu")


def test_a_drawing_of_a_missing_field(tmp_path: Path) -> None:
    def draw(state: Any, params: Any) -> Picture:
        del params
        return Picture((-1, -1, 1, 1), (disc(state["xx"], 0.1, (0, 0, 0)),))

    line = draw.__code__.co_firstlineno + 2
    found = check_message(values.drawing, walk(tmp_path, more={"drawing": Drawing(draw)}), "cpu")
    assert found.startswith(f"{display(__file__)}:{line}: there is no field 'xx' in the state")
    assert "There are: x, pace" in found
    assert found.endswith('    return Picture((-1, -1, 1, 1), (disc(state["xx"], 0.1, (0, 0, 0)),))')


# --- ends ---


def test_an_agent_that_returns_to_the_game(tmp_path: Path) -> None:
    broken = CHASE["step"] + "\n    FOR_EACH_AGENT(i, AGENTS) { if (w.elapsed % 10 == 0) w.in_game[i] = true; }"
    assert "is in the game again" in check_message(ends.episode_ends, chase(tmp_path, step=broken), "cpu")


def test_a_game_without_agents(tmp_path: Path) -> None:
    broken = CHASE["step"] + "\n    FOR_EACH_AGENT(i, AGENTS) { if (w.elapsed == 4 + i) w.in_game[i] = false; }"
    broken = broken.replace("w.terminated = w.caught == NUM_PREY", "w.terminated = false")
    found = check_message(ends.episode_ends, chase(tmp_path, step=broken), "cpu")
    assert re.match(r"in step \d+ of replica \d+ no agent is left in the game, but the episode continues", found)


def test_ends_are_counted(tmp_path: Path) -> None:
    told = ends.episode_ends(Subject(walk(tmp_path), 9, 60, 0, {}), "cpu")
    assert "by the limit of 40 steps, the same in all autoreset modes" in told
    endless = walk(tmp_path, "Endless-v0", more={"max_episode_steps": None}, step="s.x = 0;\n    return {0, false};")
    told = ends.episode_ends(Subject(endless, 9, 60, 0, {}), "cpu")
    assert told.startswith("no episode was terminated by the rules in 60 steps, so such ends were not tested")
    assert "because Endless-v0 has none" in told


# --- arguments and messages ---


def test_invalid_arguments() -> None:
    with pytest.raises(gpu_envs.UnknownEnvironmentError, match="CartPole-v1"):
        check_environment("CartPole-v9")
    with pytest.raises(ValueError, match="num_envs is 2"):
        check_environment("CartPole-v1", num_envs=2)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("x.cuh:7: index 9 of 'cells', which has 9 elements\n", "x.cuh:7: index 9 of 'cells'"),
        (
            "x.cuh:7: index: block: [0,0,0], thread: [3,0,0] Assertion `cells` failed.\n",
            "x.cuh:7: an index outside 'cells'",
        ),
        ("x.cuh:12:3: runtime error: division by zero\n", "x.cuh:12: division by zero"),
        (
            "==1==ERROR: AddressSanitizer: heap-buffer-overflow on address\n"
            "    #0 0x1 in memset (libasan.so)\n    #1 0x1 in gpu_envs::step(gpu_envs::State&) x.cuh:3\n",
            "x.cuh:3: heap-buffer-overflow",
        ),
        (
            "========= Invalid __global__ write of size 4 bytes\n=========  at step+0x90 in x.cuh:8\n",
            "x.cuh:8: Invalid",
        ),
        ("Segmentation fault\n", "ended with exit code -11:\nSegmentation fault"),
    ],
)
def test_descriptions_of_exits(said: str, told: str) -> None:
    assert told in builds.describe_exit(said, -11)


def test_an_observation_with_memory(tmp_path: Path) -> None:
    counts = "static int calls = 0;\n    observation[0] = real(calls++ % 8);\n    observation[1] = 0;"
    found = check_message(sameness.observations, walk(tmp_path, observe=counts), "cpu")
    assert found.startswith("after step 0, ")
    assert found.endswith(
        "when observed again: observe (and look) must be functions of state and parameters, and not depend on "
        "scratch that step or reset wrote"
    )
