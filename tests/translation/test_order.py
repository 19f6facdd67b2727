"""Operands, arguments, indices, bounds and right-hand sides are evaluated in Python's order."""

import re
import types

import numpy as np
import pytest
from generated_rules import FIELDS, HEAD, Held, Numbers, held_spec, stepped
from translation_cases import import_source

CASES = [
    # bounds of a loop are evaluated once
    "for i in range(p.n - s.k):\n    s.k += 1\n    s.out += 1",
    "m = 5\nfor i in range(p.n * m):\n    m = 1\n    s.out += 1",
    "m = 2\nfor i in range(m, p.n + m):\n    m = 0\n    s.out += 1",
    "for i in range(s.k, bump(s, 3)):\n    s.out += i + 1",
    # arguments in the order of the call
    "s.out = mixed(v=random.uniform(0.0, 1.0), u=random.uniform(0.0, 1.0))",
    "s.out = mixed(random.uniform(0.0, 1.0), n=random.integer(9), v=random.uniform(0.0, 1.0))",
    "s.out = mixed(s.k, bump(s), bump(s, 2))",
    "s.out = mixed(n=bump(s), u=s.k, v=bump(s) + s.k)",
    # the right-hand side before the index, left operands before right ones
    "s.c[s.k % 4] = bump(s)",
    "s.r[s.k % 4] = bump_row(s, bump(s), x)",
    "l = [0, 0, 0, 0]\nl[s.k % 4] = bump(s)\ns.out = l[0] + 10 * l[1]",
    "s.c[s.k % 4] += bump(s)",
    "s.k += bump(s)",
    "s.k -= bump(s) * s.k",
    "s.c[bump(s) % 4] += bump(s) * s.c[1]",
    "s.out = s.k + bump(s) * s.k - bump(s)",
    "s.out = s.c[s.k % 4] - bump(s) + s.c[s.k % 4]",
    "s.out = (s.k < bump(s)) + (bump(s) < s.k < bump(s)) + s.k",
    "s.out = min(s.k, bump(s), s.k + 1) + TABLE[s.k % 6] * TABLE[bump(s) % 6]",
    "s.out = s.k if bump(s) > 1 and bump(s) < 9 or bump(s) > 3 else -s.k",
    "while s.k < bump(s) < 9:\n    s.out += s.k",
    "if s.k > bump(s):\n    s.out = 1\nelif s.k < bump(s):\n    s.out = 2 + s.k",
    "i = 0\ni, s.c[i] = 1, 5",
    "i, j = 1, 2\ni, j, s.c[i] = j, i, j\ns.out = i * 10 + j",
    "s.k, s.c[s.k % 4], s.out = bump(s), s.k, bump(s)",
    "l = [s.k, bump(s), s.k]\ns.out = l[0] + 10 * l[1] + 100 * l[2]",
    "s.x = s.c[s.k % 4] = bump(s)",
    "u, n = two(s, random)\ns.out = u + n + s.k",
    "s.out = (random.integer(6) % 5) ** 0 + random.uniform(0.0, 1.0)",
    "s.out = (bump(s) in (1, 2)) + 2 * (bump(s) not in (1, 2))",
    # a float, and later the variable of a loop
    "if x > 0: k = 0.5\nelse: k = 1\nfor m in range(3):\n    s.out += k\n    for k in range(2): m = k",
    # draws from left to right, and only where Python evaluates them
    "s.out = random.bits() - U",
    "s.out = random.normal(3.0, 0.0) + U",
    "s.out = random.uniform(random.uniform(0.0, 0.5), random.uniform(1.0, 2.0))",
    "while U < 0.9:\n    s.out += 1\n    if s.out > 5:\n        break",
    "s.out = (U if x > 0 else 0.0) - U",
    "s.out = mixed(U if x > 0 else 0.0, U if x > 0 else 0.0)",
    "s.out = min(0.1 < U < 0.5, U) - U",
    "s.out = (1 if x > 0 and U < 0.5 else 0) + U",
    "s.out = (1 if not x > 0 or U < 0.5 or U < 0.5 else 0) + U",
    "s.out, s.r[0] = U if x > 0 else 1, U",
    "s.f = (x > 0 and U < 0.5) == (U < 0.3)",
    "s.out = mixed(drawn(random, 1.0 if U < 0.5 else 2.0), drawn(random, 3.0) if x > 0 else 1.0)",
    "s.out = (U if U < 0.5 else -U) / U",
    "s.r[AT] += 2.0",
    "s.r[AT] -= U",
    "s.r[AT] //= 0.25",
    "s.r[AT] = U",
    "s.r[AT] = U if x > 0 else 1.0",
    "s.out, s.r[AT] = U, U",
    "s.out = s.r[AT] = U",
    "l = [0] * 4\nl[AT] += U\ns.out = l[0] + 2 * l[1] + 3 * l[2] + 4 * l[3]",
    "if x > 1:\n    pass\nelif (U if x > 0 else 0.0) < U:\n    s.out = U",
    # tuples used as lists
    "l = (s.k, bump(s), 2.5)\nm = (x,) * 3\ns.out = l[bump(s) % 3] + m[1]",
]
"""Statements whose order of evaluation C++ leaves open or defines differently."""

ABBREVIATIONS = {"U": "random.uniform(0.0, 1.0)", "AT": "int(random.uniform(0.0, 4.0))"}
"""Abbreviations in the cases."""

REPLICAS = 4


@pytest.fixture(scope="module")
def module_and_state(tmp_path_factory: pytest.TempPathFactory) -> tuple[types.ModuleType, dict[str, np.ndarray]]:
    """A module with a function for each case, and the state after a step that ran each in ``REPLICAS`` replicas."""
    arguments = "(s: State, p: Params, a: int, b: int, x: float, y: float, random: Random) -> None"
    bodies = [re.sub(r"\b(U|AT)\b", lambda state: ABBREVIATIONS[state[0]], case) for case in CASES]
    texts = [f"def f{n}{arguments}:\n    " + body.replace("\n", "\n    ") + "\n" for n, body in enumerate(bodies)]
    lines = [
        f"    {'elif' if n else 'if'} action == {n}:\n        f{n}(s, p, s.a, s.b, s.x, s.y, random)"
        for n in range(len(CASES))
    ]
    head = "def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:"
    source = "\n".join([HEAD, *texts, head, *lines, "    return 0.0, False", ""])
    python = import_source(source, tmp_path_factory.mktemp("order"), "order_of_evaluation")
    return python, stepped(held_spec(python, len(CASES)), {"x": np.full(REPLICAS * len(CASES), 0.5)}, "float64")


@pytest.mark.slow
@pytest.mark.parametrize("n", range(len(CASES)), ids=CASES)
def test_python_evaluates_in_the_same_order(
    n: int, module_and_state: tuple[types.ModuleType, dict[str, np.ndarray]]
) -> None:
    python, state = module_and_state
    for i in range(n * REPLICAS, (n + 1) * REPLICAS):
        s = Held(x=0.5)
        getattr(python, f"f{n}")(s, types.SimpleNamespace(n=7), 0, 0, 0.5, 0.0, Numbers(5 + i, 2, 0, 0))
        for field in FIELDS:
            assert np.array_equal(state[field][i], np.array(getattr(s, field))), f"{field} of replica {i}"
