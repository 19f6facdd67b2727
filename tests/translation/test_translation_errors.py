"""Code that cannot be translated is refused, with its line, the reason and a replacement."""

import re
from pathlib import Path

import pytest
from refusals import (
    SINGLE_AGENT_RULES,
    TEAM_RULES,
    fill_template,
    mark_first_line,
    single_agent_spec,
    team_spec,
    translation_error,
)
from translation_cases import HEADER, import_source, rules_of

from gpu_envs import TranslationError
from gpu_envs.translation.translate import translate_rules

STATEMENTS = {
    "assert s.x > 0": "cannot use assert",
    "import math": "top of the module",
    "try:\n    s.x = 1\nfinally:\n    pass": "cannot use try",
    "raise ValueError": "cannot raise",
    "with open('x') as f:\n    pass": "cannot use with",
    "def inner() -> None:\n    pass": "Write it in the module",
    "class Inner:\n    pass": "cannot define classes",
    "del s.x": "cannot use del",
    "global SIZE": "cannot use global",
    "match action:\n    case _:\n        pass": "Write if, elif and else",
    "s.x": "no effect",
    "for v in s.cells:\n    pass": "for i in range",
    "for j in range(3):\n    pass\nelse:  # a\n    s.x = 1  # <--": "cannot use else after a loop",
    "while s.x > 0:\n    s.x -= 1\nelse:\n    s.x = 1  # <--": "cannot use else after a loop",
    "for j in range(0, 9, s.count):\n    pass": "Write a while loop",
    "for j in range(0.5):\n    pass": "must be an int",
    "for a, b in range(3):\n    pass": "a loop has one variable",
    "while True:\n    s.x = 1": "never ends",
    "return s.x": "returns reward, terminated",
    "return 0.0, s.x": "terminated is a bool",
    "return 0.0, False, 1": "returns reward, terminated",
    "return": "this returns nothing",
}

EXPRESSIONS = {
    "s.x = lambda: 1": "Write a function with def",
    "s.x = sum([1, 2])": "Write a loop",
    "a = [k for k in range(3)]": r"\[0.0\] \* n",
    "s.x = {1: 2}[1]": "cannot use dicts",
    "s.x = (y := 1)": "separate statement",
    "a = s.cells[0:2]": "cannot use slices",
    "s.x = 'a'": "the string 'a'",
    "s.x = f'{s.x}'": "cannot format strings",
    "s.x = None": "not a number",
    "s.x = 1j": "not a number",
    "s.x = s.y": "no field 'y'",
    "s.x = s.coumt": "Did you mean 'count'",
    "s.coumt = 1": "Did you mean 'count'",
    "s.x = p.sped": "Did you mean 'speed'",
    "p.speed = 1.0": "must not write parameters",
    "p.map[0, 0] = 1": "must not write tables",
    "s.count = s.x": r"of type int.*Write int\(\.\.\.\), or make the field real",
    "s.count += 0.5": "of type int.*Write int",
    "s.count /= 2": "of type int",
    "s.small = s.x": "of type byte",
    "s.on = s.count": "Write True, False, or a comparison",
    "s.cells[1] = 0.5": "of type int",
    "s.cells = [1, 2, 3, 4]": "Assign its elements in a loop",
    "s.cells[4] = 1": "there are 4 elements",
    "s.cells[-5] = 1": "there are 4 elements",
    "s.cells[s.x] = 1": "an index must be an int",
    "s.cells[0, 1] = 1": "1 dimensions and got 2",
    "s.x = s.cells": "an array",
    "s.x = p.map[0]": "an array",
    "s.x = p.map[0, 2]": "there are 2 elements",
    "s.x = s.x[0]": "has no elements",
    "s = 1": "Use another name",
    "s.x = unknown": "'unknown' is not defined",
    "s.x = twise(s.x)": "Did you mean 'twice'",
    "s.x = SIZ": "Did you mean 'SIZE'",
    "s.x = math.asin(s.x)": "no math.asin.*math.atan2",
    "s.x = math.cosh(s.x)": "math.exp",
    "s.x = math.six(s.x)": "Did you mean 'sin'",
    "s.x = s.count ** s.count": "Write float",
    "s.x = 3 ** s.count": "Write float",
    "s.x = s.count ** 20": "Write float",
    "s.x = 1 / 0": "divi",
    "s.x = s.x % 0": "divides by zero",
    "s.x = s.x & 1": "bit operations need ints",
    "s.x = ~s.x": "bit operations need ints",
    "s.count = 1 << 40": "32 bits",
    "s.count = 3000000000": "32 bits",
    "s.x = s.x @ s.x": "no matrix product",
    "s.on = s.x is None": "not a number|==",
    "s.on = s.x is s.x": "cannot use 'is'.*Write ==",
    "s.on = s.x in s.cells": "tuple of constants",
    "s.x = s.count and 1": "join bools",
    "s.x = math.sin(s.x, 1)": "takes 1",
    "s.x = math.sin(x=s.x)": "no keyword arguments",
    "s.x = abs()": "takes 1",
    "s.on = p.start == 'fixd'": "Did you mean 'fixed'",
    "s.on = p.start < 'fixed'": "no order",
    "s.x = 'l' if s.on else 'r'": "selects the string 'l' or the string 'r'.*Give two numbers",
    "s.on = p.start == 1": "Compare it with one of these strings",
    "s.x = p.start": "a choice of",
    "s.x = TABLE[0]": "cannot use dicts",
    "s.x = random.gauss(0, 1)": r"no random.gauss.*Write random.normal\(0.0, 1.0\)",
    "s.x = random.random()": r"no random.random.*Write random.uniform\(\)",
    "s.x = random.unifrom(0, 1)": "Did you mean 'uniform'.*Use one of: random.uniform, random.integer",
    "s.x = pythons.random()": r"Python's random.random.*random.uniform\(\)",
    "s.x = random.uniform(1)": "takes 2",
    "s.x = random.choice()": r"takes a list of 1 to 64 weights.*Write random.choice\(\[a, b, c\]\)",
    "s.x = random.choice([])": "takes a list of 1 to 64 weights",
    "s.x = random.choice(s.x)": "takes a list of 1 to 64 weights",
    f"s.x = random.choice([{'1.0, ' * 65}])": "takes a list of 1 to 64 weights",
    "s.x = random.choice([1.0, 'a'])": "cannot be used as a number|is not a number|string",
    "s.x = random.poisson()": "takes 1",
    "s.x = random.binomial(s.x, 0.5)": "must be an int",
    "s.x = random.integer(s.x)": "must be an int",
    "s.x = untyped(s.x)": "def untyped",
    "s.x = untold(s.x)": "def untold",
    "s.x = forever(s.x)": "Write a loop",
    "s.x = twice()": "got 0 arguments, and no 'x'; it takes 1: x",
    "s.x = late(s.x)": "got 1 arguments, and no 'x'; it takes 2: p, x",
    "s.small = 300": "300 does not fit.*0 to 255",
    "s.small = -1": "-1 does not fit",
    "s.x = max(s.cells)": r"result = max\(result, s.cells\[k\]\)",
    "s.x = float('inf')": "Write math.inf",
    "s.x = float('-inf')": "Write -math.inf",
    "s.x = pair(s.x)[0]": r"a, b = pair\(s.x\)",
    "s.x = round(s.x, 2)": r"round\(s.x \* 100.0\) / 100.0",
    "s.x = p.map[1]": r"Write p.map\[1, column\]",
    "s.on = action == 'left'": "Actions, .* are numbers",
    "s.x = ZERO_D": r"float\(",
    "print(s.x)": "rules cannot print.*Print env.state after a step",
    "yield s.x": "cannot yield",
    "HITS[0] += 1": "constant of the module, which cannot be assigned",
    "HITS[0] = 1": "Use a field of the spec's state",
    "s.x = wrapped(s.x)": "Remove the decorator",
    "s.x = twice(1, 2)": "got 2 arguments",
    "s.x = twice(z=1)": "no other argument 'z'",
    "s.x = twice(s)": "the State and not a number",
    "s.x()": "no method",
    "s.x = int": "not a number|int",
    "s.jump()": "no method",
    "a = [0.0] * s.count": "length of a list must be a constant",
    "a = [0.0] * 0": "0 elements",
    "a = [p.start]": "elements of a list must be numbers",
    "a = s.cells": "cannot have two names",
    "a = random": "two names",
    "a: int = 0.5": "must be an int",
    "a, b = 1, 2, 3": "3 values are assigned to 2 names",
    "a, b = s.x": "assigned to 2 names",
    "a, *b = 1, 2": "cannot be assigned",
    "s.x = rules.AGENTS": "no constant AGENTS",
    "s.x = AGENTS": "'AGENTS' is not defined",
    "s.x = float('nan')": "string|NaN",
    "s.x = math.nan": "NaN",
    "s.x = s.x ** math.nan": "NaN",
    "s.x = math.floor(math.nan)": "cannot convert float NaN",
    "s.x = int(math.inf)": "cannot convert float infinity",
    "s.x = 2 ** 2000 * s.x": "too large for a float",
    "s.x = math.sqrt(10 ** 400)": "too large for a float",
    "s.x = math.sqrt('a')": "the string 'a'",
    "s.x = RAGGED[s.count]": "rows of different lengths",
    "s.x = NO_NUMBER[s.count]": "not finite",
    "s.x = HUGE[s.count]": "does not fit 32 bits",
    "s.x = len(s.x)": "no known length",
    "add(s.count, 1)": "field of the world",
}

BLOCKS = {
    "if s.x > 0:\n    a = 1\ns.x = a  # <--": "'a' may not be set",
    "for j in range(s.count):\n    a = 1\ns.x = a  # <--": "'a' may not be set",
    "while s.x > 0:\n    a = 1\n    break\ns.x = a  # <--": "'a' may not be set",
    "s.x = a  # <--\na = 1": "'a' may not be set",
    "a += 1": "'a' may not be set",
    "if s.x > 0:\n    a = [1, 2]  # <--\nelse:\n    a = [3, 4]\ns.x = a[0]": "Create it once",
    "if s.x > 0:\n    a = [1, 2]  # <--\nelse:\n    a = [3, 4]": "Create it once",
    "a = begin(s)  # <--": "Write the call as a statement",
    "a = begin(s) if s.x > 0 else begin(s)  # <--": "Write the call as a statement",
    "s.x = begin(s)  # <--": "Write the call as a statement",
    "a = 1\na = p.start  # <--": "another type elsewhere",
    "if s.x > 0:\n    s.x = 1\nelif s.y > 1:  # <--\n    pass": "no field 'y'",
}

OBSERVATIONS = {
    "s.x = 1": "observe must not change the state",
    "moves(s)": "observe must not change the state",
    "observation[3] = 1": "there are 3 elements",
    "observation[1] += 1": "observations are write-only",
    "observation[1] = observation[0]": "observations are write-only",
    "observation.image[0] = 1": "has no 'image'",
    "observation[0] = observation.size(0)": r"Write observation.shape\[0\]",
    "return 1": "observe returns nothing.*Write return without a value$",
    "observation[1] = random.uniform(0, 1)": "random",
}

PHASES = {
    "w.x[0] = 1": r"Move it into a phase.*team.agents\(n\) for n iterations",
    "if w.left > 0:\n    pass": "Move it into a phase",
    "for i in team.agents():\n    w.left = 1  # <--": "if i == 0",
    "for i in team.agents():\n    w.left += 1  # <--": "add",
    "for i in team.agents():\n    w.x[0] = 1  # <--": "the iteration of agent 'i'",
    "for i in team.agents():\n    w.cargo[1, 0] = 1  # <--": "the iteration of agent 'i'",
    "for i in team.agents():\n    w.present[i] = True  # <--": "must not write present",
    "for i in team.agents():\n    w.pending = True  # <--": "no field 'pending'",
    "a = [0] * AGENTS\nfor i in team.agents():\n    a[i] = 1  # <--": "cannot share a list",
    "a = [0] * AGENTS\nfor i in team.agents():\n    a[i] += 1  # <--\n    w.x[i] = a[i]": "cannot share a list",
    "for i in team.agents():\n    if i == 0:\n        w.elapsed = 3  # <--": "must not write elapsed",
    "for i in team.agents():\n    break  # <--": "Write continue",
    "for i in team.agents():\n    return  # <--": "Write continue",
    "return": "all phases",
    "for i in team.agents():\n    for j in team.agents():  # <--\n        pass": "inside a phase",
    "for i in team.agents():\n    a = w.x[i]\nfor i in team.agents():\n    w.x[i] = a  # <--": "another phase",
    "a = 1\nfor i in team.agents():  # <--\n    a = 2\n    w.x[i] = a": "cannot share variables",
    "if p.wide:  # <--\n    for i in team.agents():\n        pass": "fixed=True",
    "for k in range(p.size):  # <--\n    pass": "must be an int",
    "while p.wide:  # <--\n    for i in team.agents():\n        pass": "same phases",
    "for i in team.agents():\n    roll(w, team)  # <--": "called inside one",
    "for i in team.agents(0.5):  # <--\n    pass": "must be an int",
    "for i in team.agents(1, 2):  # <--\n    pass": "takes a number",
    "for r, c in team.agents(2, 3):  # <--\n    pass": r"Write for r, c in team.elements\(ROWS, COLUMNS\)",
    "for i in team.agents():\n    w.in_game[i] = True  # <--": "cannot set in_game to True.*such as alive",
    "for i in team.agents():\n    add(w.x[i], 1)  # <--": "must be an int field of the world",
    "for i in team.agents():\n    a = add(w.left, 1)  # <--": "separate statement",
    "for i in team.agents():\n    add(w.left, 0.5)  # <--": "must be an int",
    "for i in team.agents():\n    w.x[i] = team.random(1, i).uniform(0, 1)  # <--": "RESET or STEP",
    "for i in team.agents():\n    w.x[i] = team.random(STEP).uniform(0, 1)  # <--": r"or in step team.random\(STEP",
    "for i in team.agents():\n    w.x[i] = CATS  # <--": "Did you mean 'CAT'|no constant CATS",
    "for i in team.agents():\n    w.x[i] = actions[i][0]  # <--": "has no elements",
    "a = team.agents()": "for statement",
    "for i in team.agents():\n    r = q = team.random(RESET, i)  # <--": r"Write one name: r = team.random\(RESET, i\)",
    "for i in team.agents:  # <--\n    pass": r"Write for i in team.agents\(\):",
    "for i in team.agents():\n    w.x[i] = team.random(STEP, i).uniform(0, 1)  # <--": r"random\(STEP, i, w.elapsed\)",
    "for i in team.agents():\n    w.x[i] = team.random(RESET, i, 1).bits()  # <--": r"Write team.random\(RESET, i\)",
    "for i in team.agents():\n    add(w.left, 1)\n    w.x[i] = w.left  # <--": "in the phase that writes it",
    "for i in team.agents():\n    if i == 0:\n        w.left = 1\n    w.x[i] = w.left  # <--": "the phase that writes",
}

LOOP = "for i in team.agents():\n    "

RACES = {
    "if w.x[i] > 0:\n        w.left += 1  # <--": "if i == 0",
    "if w.x[i] > 0:\n        w.left = actions[i]  # <--": "if i == 0",
    "if i > 0:\n        w.left = i  # <--": "if i == 0",
    "if i == 0 or w.x[i] > 0:\n        w.left = i  # <--": "if i == 0",
    "if i == 0:\n        continue\n    w.left = i  # <--": "if i == 0",
    "for k in range(2):\n        if i != 0:\n            continue\n    w.left = i  # <--": "if i == 0",
    "if w.x[i] > 0:\n        if i != 0:\n            continue\n    w.left = i  # <--": "if i == 0",
    "if i == 0:\n        w.left = 1\n    else:\n        w.left = i  # <--": "if i == 0",
    "if i == 0:\n        w.left = 1\n    if i == 1:\n        w.left = 2  # <--": "several iterations write 'left'",
    "if w.x[i] > 0:\n        w.left = 1\n    else:\n        w.left = 2  # <--": "several iterations write 'left'",
    "if i == 0:\n        w.left = 0\n    add(w.left, 1)  # <--": "several iterations write 'left'",
    "w.x[i] = w.x[(i + 1) % AGENTS] + 1  # <--": "iterations read 'x'",
    "w.x[i] = 1\n    for j in range(AGENTS):\n        w.cargo[i, 0] += int(w.x[j])  # <--": "iterations read 'x'",
    "if i == 0:\n        w.left = 1\n    if i > 0:\n        w.x[i] = w.left  # <--": "iterations read 'left'",
    "if w.left == 0 and w.x[i] > 0:  # <--\n        w.left = 1": "iterations read 'left'",
    "j = i\n    j += 1\n    w.x[j] = 1  # <--": "writes a field of another agent",
    "w.cargo[i * 2 + 1] = 1  # <--": "writes a field of another agent",
    "w.cargo[i * 3 + 3] = 1  # <--": "writes a field of another agent",
    "w.cargo[0] = i  # <--": "writes a field of another agent",
    "w.cargo[i * 0] = 1  # <--": "writes a field of another agent",
    "w.board[i % 2] = i  # <--": "every iteration writes 'board'",
    "for c in range(3):\n        w.tiles[i % 2, c] = i  # <--": r"for r, c in team.elements\(ROWS, COLUMNS\): w.tiles",
    "w.board[i] = w.board[i + 1]  # <--": "iterations read 'board'",
    "for k in range(3):\n        w.board[i * 2 + k] = i  # <--": "every iteration writes 'board'",
    "w.x[i + w.left] = 1  # <--": "writes a field of another agent",
    "k = actions[i]\n    w.in_game[i - k] = False  # <--": "writes a field of another agent",
    "k = actions[i]\n    w.x[i] = w.x[k + i]  # <--": "iterations read 'x'",
    "k = actions[i]\n    w.cargo[i * 3 - k] = 1  # <--": "writes a field of another agent",
    "w.cargo[3 * (i + w.left)] = 1  # <--": "writes a field of another agent",
    "k = actions[i]\n    w.cargo[i, 0] = w.cargo[i * 3 + k + 5]  # <--": "iterations read 'cargo'",
    "put(w, (i + 1) % AGENTS, 1)  # <--": "writes a field of another agent",
    "note(w, actions[i])  # <--": "every iteration writes 'left'",
    "once(w, 1)  # <--": "every iteration writes 'left'",
    "put(w, i, 1)\n    w.cargo[i, 0] = int(seen(w, 0))  # <--": "iterations read 'x'",
}
"""Bodies of a phase with races, and their messages."""

ALLOWED = [
    "w.x[i] = w.x[i * 1] + 1",
    "j = i\n    w.x[j] = w.x[i] + 1",
    "if i == 0:\n        w.left = w.left + actions[1]",
    "if i == AGENTS - 1 and p.wide:\n        w.left += 1",
    "if i == first_of(CAT):\n        w.left += 1",
    "if not i:\n        w.left = i",
    "if i == p.size or i == p.size:\n        pass\n    elif i == p.size:\n        w.left = i",
    "if i != 0:\n        continue\n    w.left = 0\n    for k in range(5):\n        w.left += w.board[k]",
    "if AGENTS > 1:\n        if i != 0:\n            continue\n    w.left = 0",
    "if AGENTS > 99:\n        pass\n    elif i != 0:\n        continue\n    w.left = 0",
    "if i != 1:\n        w.x[i] = 0\n    else:\n        w.left += 1",
    "if i > 0 and w.x[i] > 0:\n        w.left = 1",
    "if i == 0:\n        w.left = 1\n    if w.x[i] > 0:\n        w.left = 1",
    "w.cargo[i * 3 + 2] = w.cargo[i, 1]\n    w.cargo[3 * i] = 1",
    "for k in range(3):\n        w.cargo[i * 3 + k] = k\n        w.cargo[i, k] += 1",
    "w.board[i + 1] += i",
    "for k in range(2):\n        w.board[i * 2 + k] = i",
    "at = i * 2\n    w.board[at] = i\n    w.board[at + 1] = w.board[at]",
    "at = i * 2\n    for k in range(4):\n        w.board[at + k // 2] = k % 2",
    "k, first = actions[i], i * 3\n    w.cargo[k + 3 * i] = 1\n    w.cargo[first + k] = w.left",
    "if w.x[i] > 0:\n        j = i\n    else:\n        continue\n    w.x[j] = 1",
    "if i == WHOLE % AGENTS - 1:\n        w.left += 1",
    "if i == LEVELS[int(p.size)]:\n        w.left += 1",
    "if i == int(p.size) // 2:\n        w.left += 1",
    "if i == (1 if p.wide else 0):\n        w.left += 1",
    "put(w, i, seen(w, i))",
    "once(w, i)",
    "if i == 0:\n        note(w, actions[i])",
    "for j in range(AGENTS):\n        w.cargo[i, 0] += int(w.x[j])",
]

ELEMENT_ALLOWED = [
    "w.cargo[k] += k",
    "i, j = k // 3, k % 3\n    w.cargo[i, j] = int(w.x[j]) + w.cargo[i, j]",
    "w.cargo[k // 3, k % 3] = 1",
    "i = k // 3\n    j = k % 3\n    w.cargo[i, j] += int(w.x[i] * w.x[j])",
]
"""Bodies of a phase over all elements of all agents that have no races."""

ELEMENT_RACES = {
    "w.cargo[k // 2, k % 2] = 1  # <--": "writes a field of another agent",
    "i, j = k // 3, k % 3\n    w.cargo[i, j] = w.cargo[j, i]  # <--": "iterations read 'cargo'",
    "i = k // 3\n    w.x[i] += 1  # <--": "writes a field of another agent",
    "w.cargo[k + 1] = 1  # <--": "writes a field of another agent",
}

ROWS = {
    "w.x[i] = 1": "observe must not change the world",
    "for j in row.columns():  # <--\n    pass": "number of columns",
    "a = [0.0] * 2\nfor j in row.columns(2):\n    a[j] = j  # <--\nrow[1] = a[1]": "cannot share a list",
    "total = 0.0\nfor j in row.columns(2):  # <--\n    total += 1\nrow[1] = total": "cannot share variables",
    "row[3] = 1": "there are 3 elements",
}


@pytest.mark.parametrize("body", [*STATEMENTS, *EXPRESSIONS, *BLOCKS])
def test_a_step_is_refused(body: str, tmp_path: Path) -> None:
    expected = {**STATEMENTS, **EXPRESSIONS, **BLOCKS}[body]
    other_line_is_marked = expected.startswith("def ") or "forever" in body
    message = translation_error(
        fill_template(SINGLE_AGENT_RULES, body if other_line_is_marked else mark_first_line(body)),
        single_agent_spec,
        tmp_path,
    )
    assert re.search(expected, message, re.S), message


@pytest.mark.parametrize("observe_body", OBSERVATIONS)
def test_an_observation_is_refused(observe_body: str, tmp_path: Path) -> None:
    message = translation_error(
        fill_template(SINGLE_AGENT_RULES, seen=mark_first_line(observe_body)), single_agent_spec, tmp_path
    )
    assert re.search(OBSERVATIONS[observe_body], message, re.S), message


ELEMENT_LOOP = "for k in team.agents(AGENTS * 3):\n    "

BOUNDS = [
    "for i in team.agents(w.left):\n    if i == 0:\n        w.left = 2  # <--",
    "for i in team.agents(min(w.left, AGENTS)):\n    add(w.left, 1)  # <--",
    "for i in team.agents(w.board[0]):\n    w.board[i] = 1  # <--",
    "for i in team.agents(some(w)):\n    if i == 0:\n        note(w, 2)  # <--",
    "for i, j in team.elements(AGENTS, w.left):\n    add(w.left, j)  # <--",
]
"""Phases that change their number of iterations."""

TEAM_CASES = {
    **dict.fromkeys(BOUNDS, "the number of iterations depends on it.*a later phase"),
    **{mark_first_line(body): message for body, message in PHASES.items()},
    **{LOOP + body: message for body, message in RACES.items()},
    **{ELEMENT_LOOP + body: message for body, message in ELEMENT_RACES.items()},
}

TRANSLATED = {
    **dict.fromkeys((LOOP + body for body in ALLOWED), "FOR_EACH_AGENT(i"),
    **dict.fromkeys((ELEMENT_LOOP + body for body in ELEMENT_ALLOWED), "FOR_EACH_AGENT(k, 6)"),
    "for k in range(2):\n    for i in team.agents():\n        w.board[i * 2 + k] = i": "FOR_EACH_AGENT(i",
    "for i in team.agents(1):\n    w.left += 1": "w.left += 1",  # a single iteration may write any field
    "for i in team.agents(1):\n    for k in range(AGENTS):\n        w.x[k] = w.x[i] + 1": "FOR_EACH_AGENT(i, 1)",
    "for i in team.agents(w.left):\n    w.board[i] = w.left": "FOR_EACH_AGENT(i, w.left)",
}


@pytest.mark.parametrize("body", TEAM_CASES)
def test_a_phase_or_race_is_refused(body: str, tmp_path: Path) -> None:
    message = translation_error(fill_template(TEAM_RULES, body), team_spec, tmp_path)
    assert re.search(TEAM_CASES[body], message, re.S), message


@pytest.mark.parametrize("body", TRANSLATED)
def test_code_without_races_is_translated(body: str, tmp_path: Path) -> None:
    spec = team_spec(rules_of(import_source(HEADER + fill_template(TEAM_RULES, body), tmp_path)))
    assert TRANSLATED[body] in translate_rules(spec, spec.check_params({}, 1))


def test_a_spec_with_the_name_of_a_role_is_refused(tmp_path: Path) -> None:
    body = "for i in team.agents():\n    w.x[i] = CAT"
    module = import_source(HEADER + fill_template(TEAM_RULES, body), tmp_path)
    module.CAT = spec = team_spec(rules_of(module))  # type: ignore[attr-defined]  # as an author's module
    with pytest.raises(TranslationError, match="CAT is a constant of the rules, and the spec") as caught:
        translate_rules(spec, spec.check_params({}, 1))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("observe_body", ROWS)
def test_a_row_is_refused(observe_body: str, tmp_path: Path) -> None:
    message = translation_error(fill_template(TEAM_RULES, "pass", mark_first_line(observe_body)), team_spec, tmp_path)
    assert re.search(ROWS[observe_body], message, re.S), message
