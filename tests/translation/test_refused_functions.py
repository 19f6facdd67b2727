"""Refused functions: wrong arguments, incomplete resets and observations, decorators, names that are not imported."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from refusals import BOX, SINGLE_AGENT_RULES, TEAM_RULES, fill_template, single_agent_spec, team_spec, translation_error
from translation_cases import HEADER, import_source, rules_of

import gpu_envs
from gpu_envs.translation.translate import translate_rules


def test_full_message(tmp_path: Path) -> None:
    message = translation_error(
        fill_template(SINGLE_AGENT_RULES, "s.x = 1 + math.acos(s.x)  # <--"), single_agent_spec, tmp_path
    )
    line = re.search(r"line (\d+)", message)
    assert line is not None
    assert message == (
        "rules have no math.acos that is bit-identical on all devices\n"
        f'  File "{tmp_path}/rules_of_test.py", line {line[1]}, in step\n'
        "    s.x = 1 + math.acos(s.x)  # <--\n"
        "              ^^^^^^^^^^^^^^\n"
        "Write math.atan2(math.sqrt(1 - x * x), x)"
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("def step(s: State, p: Params, action: Action, random: Random)", "def step(s, p, action)", "has 3 arguments"),
        ("def observe(s: State, p: Params, observation: Observation)", "def observe(s)", "has 1 arguments"),
        ("def reset(s: State, p: Params, random: Random)", "def reset(s: State, random: Random, p: Params)", "order"),
        ("def reset(s: State, p: Params, random: Random)", "def reset(s, p, *random)", "Name each argument"),
        ("    s.count = 0\n", "", "reset does not set 'count'"),
        ("    return 0.0, False\n", "", "without a result"),
        ("    observation[1] = s.count\n", "", r"does not write observation\[1\]"),
        ("    s.count = 0\n", "", r"write s.count = \.\.\. in reset"),
        ("    s.count = 0\n", "    if s.x > 0:\n        s.count = 0\n", "sets 'count' on some paths only"),
        (
            "    s.x = random.uniform(-1, 1)\n",
            "    if s.count > 0:\n        return\n    s.x = 0\n",
            "'x', 'count', 'sm",
        ),
        ("    s.count = 0\n", "    a = s.x > 0 and counts(s)\n", "sets 'count' on some paths only"),
        ("    s.count = 0\n", "    a = 1 if s.x > 0 else counts(s)\n", "sets 'count' on some paths only"),
        ("    s.count = 0\n", "    a = 0 < s.x < counts(s)\n", "sets 'count' on some paths only"),
        ("    s.count = 0\n", "    for k in range(action_of(s)):\n        s.count = 0\n", "'count' on some paths"),
        (
            "def step(s: State, p: Params, action: Action",
            "def step(p, s, action: Action",
            "'p' is passed the State in step",
        ),
        ("def step(", "@decorated\ndef step(", "no decorators"),
        ("x: float) -> float:\n    return 2", "x: float) -> list[float]:\n    return 2", "Annotate it with ->"),
    ],
)
def test_refused_functions(old: str, new: str, expected: str, tmp_path: Path) -> None:
    text = fill_template(SINGLE_AGENT_RULES, "s.x = twice(s.x)")
    assert old in text
    text = "\ndef decorated(f):\n    return f\n" + text.replace(old, new)
    assert re.search(expected, translation_error(text, single_agent_spec, tmp_path), re.S)


def test_other_callables_are_refused(tmp_path: Path) -> None:
    python = import_source(HEADER + fill_template(SINGLE_AGENT_RULES), tmp_path)
    rules = rules_of(python)
    for function in (None, len, functools.partial(rules.step), lambda *_: None):
        changed = gpu_envs.Rules(reset=rules.reset, step=rules.step, observe=function)  # type: ignore[arg-type]  # wrong on purpose
        spec = single_agent_spec(changed)
        with pytest.raises(gpu_envs.TranslationError, match="observe"):
            translate_rules(spec, spec.check_params({}, 1))


def test_functions_that_the_spec_does_not_use(tmp_path: Path) -> None:
    rules = rules_of(import_source(HEADER + fill_template(SINGLE_AGENT_RULES), tmp_path))
    parts = {"reset": rules.reset, "step": rules.step, "observe": rules.observe}
    cases = [
        (single_agent_spec(gpu_envs.Rules(**parts, look=rules.reset)), "only teams have look"),
        (single_agent_spec(gpu_envs.Rules(**parts, allow=rules.observe)), "action_mask=True"),
        (single_agent_spec(gpu_envs.Rules(**parts), action_mask=True), "have no allow"),
    ]
    for spec, expected in cases:
        with pytest.raises(gpu_envs.TranslationError, match=expected):
            translate_rules(spec, spec.check_params({}, 1))


def test_a_reset_that_sets_everything_on_every_path(tmp_path: Path) -> None:
    """Fields are set in both branches or through a function; a function that sets a field on some paths is refused."""
    plain = "    s.count = 0\n    s.small = 0\n    s.on = False\n"
    on_all_paths = (
        "    begin(s)\n    s.on = True\n    if s.x > 0:\n        s.small = 1\n    else:\n        s.small = 2\n"
    )
    text = fill_template(SINGLE_AGENT_RULES)
    assert plain in text
    spec = single_agent_spec(rules_of(import_source(HEADER + text.replace(plain, on_all_paths), tmp_path)))
    translate_rules(spec, spec.check_params({}, 1))
    on_some_paths = text.replace(plain, on_all_paths.replace("    s.on = True\n", ""))
    assert "reset sets 'on' on some paths only" in translation_error(on_some_paths, single_agent_spec, tmp_path)


PARTS = {
    "observation.near[0] = observation.near[1] = s.x": "does not write observation.image",
    "observation.image[0, 0] = 1\nobservation.near[-1] = s.x": r"does not write observation.near\[0\]",
    "observation.near[0] = observation.near[1] = s.x\nobservation.image[0, 0] = 256": "256 does not fit",
}


@pytest.mark.parametrize("observe_body", PARTS)
def test_parts_of_an_observation(observe_body: str, tmp_path: Path) -> None:
    image = gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)
    space = gymnasium.spaces.Dict({"image": image, "near": gymnasium.spaces.Box(-1, 1, (2,), np.float32)})
    start, end = SINGLE_AGENT_RULES.index("    observation[0]"), SINGLE_AGENT_RULES.index("    {seen}")
    text = fill_template(SINGLE_AGENT_RULES[:start] + SINGLE_AGENT_RULES[end:], seen=observe_body)
    message = translation_error(text, lambda header: single_agent_spec(header, observation=space), tmp_path)
    assert re.search(PARTS[observe_body], message), message


def test_rows_of_roles(tmp_path: Path) -> None:
    """Every element of a role's row must be written, unless the role has no agents."""
    wide = gymnasium.spaces.Box(-1, 1, (5,), np.float32)

    def spec_with(header: gpu_envs.Rules, dogs: int) -> gpu_envs.TeamSpec:
        cats = gpu_envs.Role("cat", 2, BOX, gymnasium.spaces.Discrete(5))
        return team_spec(header, roles=(cats, gpu_envs.Role("dog", dogs, wide, gymnasium.spaces.Discrete(5))))

    text = fill_template(TEAM_RULES).replace("row[-1]", "row[2]")
    message = translation_error(text, lambda header: spec_with(header, 1), tmp_path)
    assert re.search(r"does not write row\[3\].*space of 'dog' has 5 numbers", message, re.S), message
    complete = text.replace("row[2]", "row[2] = row[3] = row[-1]")
    spec = spec_with(rules_of(import_source(HEADER + complete, tmp_path)), 1)
    translate_rules(spec, spec.check_params({}, 1))


def test_names_that_are_not_imported(tmp_path: Path) -> None:
    text = fill_template(SINGLE_AGENT_RULES, "s.count = role_of(0)  # <--").replace(
        "import functools\n", "import functools\ndel role_of\n", 1
    )
    assert "from gpu_envs.rules import role_of" in translation_error(text, single_agent_spec, tmp_path)


def test_errors_of_wrapped_functions_name_the_line(tmp_path: Path) -> None:
    rules = rules_of(import_source(HEADER + fill_template(SINGLE_AGENT_RULES), tmp_path))

    class Simulation:
        def step(self) -> None:
            pass

    cases: list[tuple[Callable[..., Any], Callable[..., Any], str]] = [
        (functools.cache(rules.step), rules.step, "decorator"),
        (Simulation().step, Simulation.step, "method of a class"),
    ]
    for function, inner, words in cases:
        spec = single_agent_spec(gpu_envs.Rules(reset=rules.reset, step=function, observe=rules.observe))
        with pytest.raises(gpu_envs.TranslationError, match=words) as caught:
            translate_rules(spec, spec.check_params({}, 1))
        code = inner.__code__
        assert (caught.value.file, caught.value.line) == (code.co_filename, code.co_firstlineno)
        assert f'File "{code.co_filename}", line {code.co_firstlineno}, in step' in str(caught.value)


def test_constants_have_no_value_in_the_module(tmp_path: Path) -> None:
    """A constant of the spec cannot be tested, compared, added or used as an index in the module."""
    for line in ("STAGES = 3 if AGENTS else 1", "TWO = AGENTS == 2", "MORE = AGENTS + 1", "ONE = (4, 5)[AGENTS]"):
        with pytest.raises(TypeError, match="AGENTS has no value in the module"):
            import_source(f"from gpu_envs.rules import AGENTS\n{line}\n", tmp_path)
    held = "\nfrom gpu_envs.rules import AGENTS, CAT\n\nHELD = (AGENTS, CAT, 7)\n"
    text = fill_template(TEAM_RULES, "for i in team.agents():\n    w.x[i] = HELD[0] + HELD[i]")
    spec = team_spec(rules_of(import_source(HEADER + held + text, tmp_path)))
    assert "{2, 0, 7}" in translate_rules(spec, spec.check_params({}, 1))
