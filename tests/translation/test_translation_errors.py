"""What cannot be translated is refused, with the line, the reason, and what to write instead."""

import re
from pathlib import Path

import pytest
from refusals import ONE, TEAM, filled, marked, one_spec, refusal, team_spec
from translation_cases import HEADER, module, rules_of

from gpu_envs.translation.translate import translated

STATEMENTS = {
    "assert s.x > 0": "no assert",
    "import math": "top of the module",
    "try:\n    s.x = 1\nfinally:\n    pass": "raise nothing",
    "raise ValueError": "raise nothing",
    "with open('x') as f:\n    pass": "no with",
    "def inner() -> None:\n    pass": "Write it in the module",
    "class Inner:\n    pass": "no classes",
    "del s.x": "nothing is deleted",
    "global SIZE": "state of their own",
    "match action:\n    case _:\n        pass": "Write if, elif and else",
    "s.x": "no effect",
    "for v in s.cells:\n    pass": "for i in range",
    "for j in range(3):\n    pass\nelse:  # a\n    s.x = 1  # <--": "no else of a loop",
    "while s.x > 0:\n    s.x -= 1\nelse:\n    s.x = 1  # <--": "no else of a loop",
    "for j in range(0, 9, s.count):\n    pass": "Write a while loop",
    "for j in range(0.5):\n    pass": "an int belongs",
    "for a, b in range(3):\n    pass": "counts with one name",
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
    "s.x = {1: 2}[1]": "no dicts",
    "s.x = (y := 1)": "statement of its own",
    "a = s.cells[0:2]": "no slices",
    "s.x = 'a'": "the string 'a'",
    "s.x = f'{s.x}'": "no strings",
    "s.x = None": "not a number",
    "s.x = 1j": "not a number",
    "s.x = s.y": "no field 'y'",
    "s.x = s.coumt": "Did you mean 'count'",
    "s.coumt = 1": "Did you mean 'count'",
    "s.x = p.sped": "Did you mean 'speed'",
    "p.speed = 1.0": "not written by rules",
    "p.map[0, 0] = 1": "not written by rules",
    "s.count = s.x": r"of type int.*Write int\(\.\.\.\), or make the field real",
    "s.count += 0.5": "of type int.*Write int",
    "s.count /= 2": "of type int",
    "s.small = s.x": "of type byte",
    "s.on = s.count": "Write a comparison",
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
    "s.x = unknown": "'unknown' is not known",
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
    "s.x = s.x & 1": "bits are of ints",
    "s.x = ~s.x": "bits are of ints",
    "s.count = 1 << 40": "32 bits",
    "s.count = 3000000000": "32 bits",
    "s.x = s.x @ s.x": "no matrices",
    "s.on = s.x is None": "not a number|==",
    "s.on = s.x in s.cells": "tuple of constants",
    "s.x = s.count and 1": "join bools",
    "s.x = math.sin(s.x, 1)": "takes 1",
    "s.x = math.sin(x=s.x)": "no names",
    "s.x = abs()": "takes 1",
    "s.on = p.start == 'fixd'": "Did you mean 'fixed'",
    "s.on = p.start < 'fixed'": "no order",
    "s.on = p.start == 1": "Write one of the words",
    "s.x = p.start": "one of the words",
    "s.x = TABLE[0]": "dicts cannot be used in rules",
    "s.x = random.gauss(0, 1)": r"no random.gauss.*Write random.normal\(0.0, 1.0\)",
    "s.x = random.random()": r"no random.random.*Write random.uniform\(0.0, 1.0\)",
    "s.x = random.unifrom(0, 1)": "Did you mean 'uniform'.*come from: random.uniform, random.integer",
    "s.x = pythons.random()": r"Python's random.random.*random.uniform\(0.0, 1.0\)",
    "s.x = random.uniform(1)": "takes 2",
    "s.x = random.integer(s.x)": "an int belongs",
    "s.x = untyped(s.x)": "def untyped",
    "s.x = untold(s.x)": "def untold",
    "s.x = forever(s.x)": "Write a loop",
    "s.x = twice()": "got 0 arguments, and no 'x'; it takes 1: x",
    "s.x = late(s.x)": "got 1 arguments, and no 'x'; it takes 2: p, x",
    "s.small = 300": "300 does not fit.*0 to 255",
    "s.small = -1": "-1 does not fit",
    "s.x = max(s.cells)": r"found = max\(found, s.cells\[k\]\)",
    "s.x = float('inf')": "Write math.inf",
    "s.x = float('-inf')": "Write -math.inf",
    "s.x = pair(s.x)[0]": r"a, b = pair\(s.x\)",
    "s.x = round(s.x, 2)": r"round\(s.x \* 100.0\) / 100.0",
    "s.x = p.map[1]": r"Write p.map\[1, column\]",
    "s.on = action == 'left'": "Actions, .* are numbers",
    "s.x = ZERO_D": r"float\(",
    "print(s.x)": "rules cannot print.*Look at env.state from outside",
    "yield s.x": "not generators",
    "HITS[0] += 1": "constant of the module, which cannot be assigned",
    "HITS[0] = 1": "Keep what changes in the spec's state",
    "s.x = wrapped(s.x)": "Remove the decorator",
    "s.x = twice(1, 2)": "got 2 arguments",
    "s.x = twice(z=1)": "no argument 'z'",
    "s.x = twice(s)": "the State and not a number",
    "s.x()": "no method",
    "s.x = int": "not a number|int",
    "s.jump()": "no method",
    "a = [0.0] * s.count": "length is a constant",
    "a = [0.0] * 0": "0 elements",
    "a = [p.start]": "lists are of numbers",
    "a = s.cells": "no second name",
    "a = random": "second name",
    "a: int = 0.5": "an int belongs",
    "a, b = 1, 2, 3": "3 values are assigned to 2 names",
    "a, b = s.x": "assigned to 2 names",
    "a, *b = 1, 2": "cannot be assigned",
    "s.x = rules.AGENTS": "no constant AGENTS",
    "s.x = AGENTS": "'AGENTS' is not known",
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

ALONE = {
    "if s.x > 0:\n    a = 1\ns.x = a  # <--": "'a' may not be set",
    "for j in range(s.count):\n    a = 1\ns.x = a  # <--": "'a' may not be set",
    "while s.x > 0:\n    a = 1\n    break\ns.x = a  # <--": "'a' may not be set",
    "s.x = a  # <--\na = 1": "'a' may not be set",
    "a += 1": "'a' may not be set",
    "if s.x > 0:\n    a = [1, 2]  # <--\nelse:\n    a = [3, 4]\ns.x = a[0]": "Make it once",
    "if s.x > 0:\n    a = [1, 2]  # <--\nelse:\n    a = [3, 4]": "Make it once",
    "a = begin(s)  # <--": "stand alone",
    "a = begin(s) if s.x > 0 else begin(s)  # <--": "stand alone",
    "a = 1\na = p.start  # <--": "one thing here and another elsewhere",
    "if s.x > 0:\n    s.x = 1\nelif s.y > 1:  # <--\n    pass": "no field 'y'",
}

SEEN = {
    "s.x = 1": "observe does not change the state",
    "moves(s)": "observe does not change the state",
    "observation[3] = 1": "there are 3 elements",
    "observation[1] += 1": "written and not read",
    "observation[1] = observation[0]": "written and not read",
    "observation.image[0] = 1": "has no 'image'",
    "return 1": "observe returns nothing",
    "observation[1] = random.uniform(0, 1)": "random",
}

PHASES = {
    "w.x[0] = 1": "Move it into a phase",
    "if w.left > 0:\n    pass": "Move it into a phase",
    "for i in team.agents():\n    w.left = 1  # <--": "if i == 0",
    "for i in team.agents():\n    w.left += 1  # <--": "add",
    "for i in team.agents():\n    w.x[0] = 1  # <--": "the turn of agent 'i'",
    "for i in team.agents():\n    w.cargo[1, 0] = 1  # <--": "the turn of agent 'i'",
    "for i in team.agents():\n    w.present[i] = True  # <--": "not written by rules",
    "for i in team.agents():\n    w.pending = True  # <--": "no field 'pending'",
    "a = [0] * AGENTS\nfor i in team.agents():\n    a[i] = 1  # <--": "lists of their own",
    "a = [0] * AGENTS\nfor i in team.agents():\n    a[i] += 1  # <--\n    w.x[i] = a[i]": "lists of their own",
    "for i in team.agents():\n    if i == 0:\n        w.elapsed = 3  # <--": "not counted by rules",
    "for i in team.agents():\n    break  # <--": "Write continue",
    "for i in team.agents():\n    return  # <--": "Write continue",
    "return": "all phases",
    "for i in team.agents():\n    for j in team.agents():  # <--\n        pass": "within a phase",
    "for i in team.agents():\n    a = w.x[i]\nfor i in team.agents():\n    w.x[i] = a  # <--": "another phase",
    "a = 1\nfor i in team.agents():  # <--\n    a = 2\n    w.x[i] = a": "variables of their own",
    "if p.wide:  # <--\n    for i in team.agents():\n        pass": "fixed=True",
    "for k in range(p.size):  # <--\n    pass": "an int belongs",
    "while p.wide:  # <--\n    for i in team.agents():\n        pass": "same phases",
    "for i in team.agents():\n    roll(w, team)  # <--": "called within one",
    "for i in team.agents(0.5):  # <--\n    pass": "an int belongs",
    "for i in team.agents(1, 2):  # <--\n    pass": "takes a number",
    "for r, c in team.agents(2, 3):  # <--\n    pass": r"Write for r, c in team.elements\(ROWS, COLUMNS\)",
    "for i in team.agents():\n    w.in_game[i] = True  # <--": "do not come back.*such as alive",
    "for i in team.agents():\n    add(w.x[i], 1)  # <--": "of type int",
    "for i in team.agents():\n    a = add(w.left, 1)  # <--": "statement of its own",
    "for i in team.agents():\n    add(w.left, 0.5)  # <--": "an int belongs",
    "for i in team.agents():\n    w.x[i] = team.random(1, i).uniform(0, 1)  # <--": "RESET or STEP",
    "for i in team.agents():\n    w.x[i] = team.random(STEP).uniform(0, 1)  # <--": r"or in a step team.random\(STEP",
    "for i in team.agents():\n    w.x[i] = CATS  # <--": "Did you mean 'CAT'|no constant CATS",
    "for i in team.agents():\n    w.x[i] = actions[i][0]  # <--": "has no elements",
    "a = team.agents()": "for statement",
    "for i in team.agents():\n    r = q = team.random(RESET, i)  # <--": "no second name",
    "for i in team.agents:  # <--\n    pass": r"Write for i in team.agents\(\):",
    "for i in team.agents():\n    w.x[i] = team.random(STEP, i).uniform(0, 1)  # <--": r"random\(STEP, i, w.elapsed\)",
    "for i in team.agents():\n    w.x[i] = team.random(RESET, i, 1).bits()  # <--": r"Write team.random\(RESET, i\)",
    "for i in team.agents():\n    add(w.left, 1)\n    w.x[i] = w.left  # <--": "in the phase that writes it",
    "for i in team.agents():\n    if i == 0:\n        w.left = 1\n    w.x[i] = w.left  # <--": "the phase that writes",
}

TURN = "for i in team.agents():\n    "

RACES = {
    "if w.x[i] > 0:\n        w.left += 1  # <--": "if i == 0",
    "if w.x[i] > 0:\n        w.left = actions[i]  # <--": "if i == 0",
    "if i > 0:\n        w.left = i  # <--": "if i == 0",
    "if i == 0 or w.x[i] > 0:\n        w.left = i  # <--": "if i == 0",
    "if i == 0:\n        continue\n    w.left = i  # <--": "if i == 0",
    "for k in range(2):\n        if i != 0:\n            continue\n    w.left = i  # <--": "if i == 0",
    "if w.x[i] > 0:\n        if i != 0:\n            continue\n    w.left = i  # <--": "if i == 0",
    "if i == 0:\n        w.left = 1\n    else:\n        w.left = i  # <--": "if i == 0",
    "if i == 0:\n        w.left = 1\n    if i == 1:\n        w.left = 2  # <--": "several turns write 'left'",
    "if w.x[i] > 0:\n        w.left = 1\n    else:\n        w.left = 2  # <--": "several turns write 'left'",
    "if i == 0:\n        w.left = 0\n    add(w.left, 1)  # <--": "several turns write 'left'",
    "w.x[i] = w.x[(i + 1) % AGENTS] + 1  # <--": "turns read 'x'",
    "w.x[i] = 1\n    for j in range(AGENTS):\n        w.cargo[i, 0] += int(w.x[j])  # <--": "turns read 'x'",
    "if i == 0:\n        w.left = 1\n    if i > 0:\n        w.x[i] = w.left  # <--": "turns read 'left'",
    "if w.left == 0 and w.x[i] > 0:  # <--\n        w.left = 1": "turns read 'left'",
    "j = i\n    j += 1\n    w.x[j] = 1  # <--": "writes a field of another's",
    "w.cargo[i * 2 + 1] = 1  # <--": "writes a field of another's",
    "w.cargo[i * 3 + 3] = 1  # <--": "writes a field of another's",
    "w.cargo[0] = i  # <--": "writes a field of another's",
    "w.cargo[i * 0] = 1  # <--": "writes a field of another's",
    "w.board[i % 2] = i  # <--": "every turn writes 'board'",
    "for c in range(3):\n        w.tiles[i % 2, c] = i  # <--": r"for r, c in team.elements\(ROWS, COLUMNS\): w.tiles",
    "w.board[i] = w.board[i + 1]  # <--": "turns read 'board'",
    "for k in range(3):\n        w.board[i * 2 + k] = i  # <--": "every turn writes 'board'",
    "w.x[i + w.left] = 1  # <--": "writes a field of another's",
    "k = actions[i]\n    w.in_game[i - k] = False  # <--": "writes a field of another's",
    "k = actions[i]\n    w.x[i] = w.x[k + i]  # <--": "turns read 'x'",
    "k = actions[i]\n    w.cargo[i * 3 - k] = 1  # <--": "writes a field of another's",
    "w.cargo[3 * (i + w.left)] = 1  # <--": "writes a field of another's",
    "k = actions[i]\n    w.cargo[i, 0] = w.cargo[i * 3 + k + 5]  # <--": "turns read 'cargo'",
    "put(w, (i + 1) % AGENTS, 1)  # <--": "writes a field of another's",
    "note(w, actions[i])  # <--": "every turn writes 'left'",
    "once(w, 1)  # <--": "every turn writes 'left'",
    "put(w, i, 1)\n    w.cargo[i, 0] = int(seen(w, 0))  # <--": "turns read 'x'",
}
"""What turns must not do, as they run at the same time."""

NO_RACES = [
    "w.x[i] = w.x[i * 1] + 1",
    "j = i\n    w.x[j] = w.x[i] + 1",
    "if i == 0:\n        w.left = w.left + actions[1]",
    "if i == AGENTS - 1 and p.wide:\n        w.left += 1",
    "if i == first_of(CAT):\n        w.left += 1",
    "if not i:\n        w.left = i",
    "if i == p.size or i == p.size:\n        pass\n    elif i == p.size:\n        w.left = i",
    "if i != 0:\n        continue\n    w.left = 0\n    for k in range(5):\n        w.left += w.board[k]",
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

PAIRS = [
    "w.cargo[k] += k",
    "i, j = k // 3, k % 3\n    w.cargo[i, j] = int(w.x[j]) + w.cargo[i, j]",
    "w.cargo[k // 3, k % 3] = 1",
    "i = k // 3\n    j = k % 3\n    w.cargo[i, j] += int(w.x[i] * w.x[j])",
]
"""What the turns of a phase over all elements of all agents may do."""

NO_PAIRS = {
    "w.cargo[k // 2, k % 2] = 1  # <--": "writes a field of another's",
    "i, j = k // 3, k % 3\n    w.cargo[i, j] = w.cargo[j, i]  # <--": "turns read 'cargo'",
    "i = k // 3\n    w.x[i] += 1  # <--": "writes a field of another's",
    "w.cargo[k + 1] = 1  # <--": "writes a field of another's",
}

ROWS = {
    "w.x[i] = 1": "observe does not change the world",
    "for j in row.columns():  # <--\n    pass": "number of columns",
    "a = [0.0] * 2\nfor j in row.columns(2):\n    a[j] = j  # <--\nrow[1] = a[1]": "lists of their own",
    "total = 0.0\nfor j in row.columns(2):  # <--\n    total += 1\nrow[1] = total": "variables of their own",
    "row[3] = 1": "there are 3 elements",
}


@pytest.mark.parametrize("body", [*STATEMENTS, *EXPRESSIONS, *ALONE])
def test_a_step_is_refused(body: str, tmp_path: Path) -> None:
    expected = {**STATEMENTS, **EXPRESSIONS, **ALONE}[body]
    elsewhere = expected.startswith("def ") or "forever" in body
    message = refusal(filled(ONE, body if elsewhere else marked(body)), one_spec, tmp_path)
    assert re.search(expected, message, re.S), message


@pytest.mark.parametrize("seen", SEEN)
def test_an_observation_is_refused(seen: str, tmp_path: Path) -> None:
    message = refusal(filled(ONE, seen=marked(seen)), one_spec, tmp_path)
    assert re.search(SEEN[seen], message, re.S), message


PAIR = "for k in team.agents(AGENTS * 3):\n    "

BOUNDS = [
    "for i in team.agents(w.left):\n    if i == 0:\n        w.left = 2  # <--",
    "for i in team.agents(min(w.left, AGENTS)):\n    add(w.left, 1)  # <--",
    "for i in team.agents(w.board[0]):\n    w.board[i] = 1  # <--",
    "for i in team.agents(some(w)):\n    if i == 0:\n        note(w, 2)  # <--",
    "for i, j in team.elements(AGENTS, w.left):\n    add(w.left, j)  # <--",
]
"""Phases whose number of turns depends on what a turn changes."""

OF_TEAMS = {
    **dict.fromkeys(BOUNDS, "on which the number of turns depends.*after this one"),
    **{marked(body): said for body, said in PHASES.items()},
    **{TURN + body: said for body, said in RACES.items()},
    **{PAIR + body: said for body, said in NO_PAIRS.items()},
}

TRANSLATED = {
    **dict.fromkeys((TURN + body for body in NO_RACES), "FOR_EACH_AGENT(i"),
    **dict.fromkeys((PAIR + body for body in PAIRS), "FOR_EACH_AGENT(k, 6)"),
    "for k in range(2):\n    for i in team.agents():\n        w.board[i * 2 + k] = i": "FOR_EACH_AGENT(i",
    "for i in team.agents(1):\n    w.left += 1": "w.left += 1",  # one turn writes what it likes
    "for i in team.agents(w.left):\n    w.board[i] = w.left": "FOR_EACH_AGENT(i, w.left)",
}


@pytest.mark.parametrize("body", OF_TEAMS)
def test_a_phase_or_race_is_refused(body: str, tmp_path: Path) -> None:
    message = refusal(filled(TEAM, body), team_spec, tmp_path)
    assert re.search(OF_TEAMS[body], message, re.S), message


@pytest.mark.parametrize("body", TRANSLATED)
def test_what_is_no_race_is_translated(body: str, tmp_path: Path) -> None:
    spec = team_spec(rules_of(module(HEADER + filled(TEAM, body), tmp_path)))
    assert TRANSLATED[body] in translated(spec, spec.check_params({}, 1))


@pytest.mark.parametrize("seen", ROWS)
def test_a_row_is_refused(seen: str, tmp_path: Path) -> None:
    message = refusal(filled(TEAM, "pass", marked(seen)), team_spec, tmp_path)
    assert re.search(ROWS[seen], message, re.S), message
