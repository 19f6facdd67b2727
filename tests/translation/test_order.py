"""Operands, arguments, indices, bounds and right sides are evaluated when Python evaluates them."""

import types

import numpy as np
import pytest
from generated_rules import FIELDS, HEAD, Held, Numbers, held_spec, stepped
from translation_cases import module

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
    # the right side before the index, what stands left before what stands right
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
    # a float, and later what a loop counts with
    "if x > 0: k = 0.5\nelse: k = 1\nfor m in range(3):\n    s.out += k\n    for k in range(2): m = k",
    # tuples where lists are taken
    "l = (s.k, bump(s), 2.5)\nm = (x,) * 3\ns.out = l[bump(s) % 3] + m[1]",
]
"""Statements whose order of evaluation C++ leaves open, or has otherwise."""

REPLICAS = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[types.ModuleType, dict[str, np.ndarray]]:
    """The module with a function for each case, and the state after a step that ran each in some replicas."""
    arguments = "(s: State, p: Params, a: int, b: int, x: float, y: float, random: Random) -> None"
    texts = [f"def f{n}{arguments}:\n    " + case.replace("\n", "\n    ") + "\n" for n, case in enumerate(CASES)]
    lines = [
        f"    {'elif' if n else 'if'} action == {n}:\n        f{n}(s, p, s.a, s.b, s.x, s.y, random)"
        for n in range(len(CASES))
    ]
    head = "def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:"
    source = "\n".join([HEAD, *texts, head, *lines, "    return 0.0, False", ""])
    python = module(source, tmp_path_factory.mktemp("order"), "order_of_evaluation")
    return python, stepped(held_spec(python, len(CASES)), {"x": np.full(REPLICAS * len(CASES), 0.5)}, "float64")


@pytest.mark.slow
@pytest.mark.parametrize("n", range(len(CASES)), ids=CASES)
def test_python_evaluates_alike(n: int, made: tuple[types.ModuleType, dict[str, np.ndarray]]) -> None:
    python, found = made
    for i in range(n * REPLICAS, (n + 1) * REPLICAS):
        s = Held(x=0.5)
        getattr(python, f"f{n}")(s, types.SimpleNamespace(n=7), 0, 0, 0.5, 0.0, Numbers(5 + i, 2, 0, 0))
        for field in FIELDS:
            assert np.array_equal(found[field][i], np.array(getattr(s, field))), f"{field} of replica {i}"
