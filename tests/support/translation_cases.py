"""Small functions in Python: run by Python, and translated and run by a step of an environment."""

import importlib.util
import itertools
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np

import gpu_envs

HEADER = """
import math

from gpu_envs import rules
from gpu_envs.rules import *
from gpu_envs.rules import Action, Mask, Observation, Params, Random, Row, State, Team, TeamActions, World

TENS = (1e-9, 1e-3, 1000.0, 1e6)
LEVELS = (0.5, -1.25, 3, 0.1)
GRID = [[1, 2, 3], [4, 5, 6]]
TENTH, WHOLE, YES = 0.1, 7, True
"""

EXPRESSIONS = """
x + y - i + j * x
x - (y - x) - (i - (j - i))
x * (y * 0.1) / (y / 3) / 7
i / j + 1 / j
-x + -(-y) - -i
+x * ~i
i // j
i % j
-i // 3 + -i % 3 + i // -4 * 10 + i % -4
x // y
x % y
x // 1 + x % 1
(x + 1e-3) % -0.7
-x // 0.3
x // j + i % y
x ** 2 + i ** 3 + (x + y) ** 2
i ** 2 ** 2
x ** 1 + x ** 0
2 ** 5 + x
4 ** 0.5 * x ** -1
i & 6 | j ^ 5
i << 3 >> 1
1 << (i & 7)
i >> abs(j * 9)
(i - i << abs(j * 9)) + (-i << abs(j) % 4)
i ^ -1
(x > 0) + (y > 0) * 2
x > 0 and y > 0
not x > 0 or i == j
x < y < i
-1 < x <= y
i < j < 5 < x
x == x != y
0 <= i % 5 < 3
(x > 0) == (y > 0)
x if x > y else i
(1 if i > 0 else 2.5) + (i if j > 0 else True)
abs(x) + abs(i) + abs(-3)
min(x, y) + max(i, j) + min(x, 0) + max(x, y, i, 0.25)
int(x) + int(-2.5) + int(x > 0) + int(True)
float(i) / 2 + bool(i) + bool(x) + float(3)
round(x) + round(x * 10 + 0.5) + round(2.5) + round(i + 0.5)
math.floor(x) + math.ceil(y) + math.trunc(x * 3)
x - math.floor(x)
math.copysign(1.0, -math.floor(x)) + math.copysign(2.0, math.ceil(x)) + math.copysign(4.0, -round(-x / 9))
math.copysign(1.0, math.floor(x * 0.0)) - math.atan2(math.ceil(x), -1.0) // 1
min((x * math.inf) ** 0.5, 9.0) + math.copysign(1.0, (x * 0.0) ** 0.5) + math.copysign(1.0, math.pow(-0.0, 0.5) * y)
math.isnan(x * math.inf // 1.0) + math.isnan(x * math.inf // y) * 2
int(math.log2(1 << abs(i))) + int(math.log10(TENS[i & 3])) * 10
math.floor(x * 4) // 3 + math.ceil(-x) % 3
math.sqrt(x * x + 1) + math.sqrt(2) + math.sqrt(abs(i))
math.fabs(x) + math.copysign(1.0, x) + math.copysign(y, -0.0) + math.copysign(2, i)
math.fmod(x, y) + math.fmod(i, 3)
math.pi * x + math.tau / math.e
x < math.inf and x > -math.inf and math.isfinite(x) and not math.isnan(x)
math.radians(x) + math.degrees(y)
LEVELS[0] + LEVELS[-1] * x + LEVELS[i & 3] + len(LEVELS)
GRID[1][2] + GRID[i & 1][j % 3] + len(GRID)
TENTH * x + WHOLE * i + YES
WHOLE // 2 + WHOLE / 2 + 1 / 3 + 2 * math.pi
(x + y) * (x + y)
4294967296 * x + 2.0 ** 40
3 in (1, 2, 3) and i in (1, 2, 3) or j not in (1, 5)
bool(i) and bool(j)
second(x, i) + second(y=x, n=2) + second(x)
mixed(i, True)
split(x, y)
halves(x, i)
min(i % math.inf, 99) + x // math.inf + math.fmod(x, -math.inf)
max(x % -math.inf, -99) + y // -math.inf + x * 0.0 // math.inf
""".strip().splitlines()

NEAR = """
abs(x) ** y + 2.5 ** x + (x * x + 1) ** 0.3 + pow(abs(y), j / 3) + math.pow(2, x) + abs(x) ** 20
math.atan(x) + math.atan2(x, y) + math.tanh(x / 3)
math.expm1(x / 3) + math.log1p(abs(x)) + math.log1p(i * i)
math.exp(x / 5) + math.log(abs(x)) + math.log(abs(x), 3) + math.log2(abs(y)) + math.log10(abs(y))
math.sin(x) + math.cos(y) + math.tan(x / 9) + math.hypot(x, y, i)
math.hypot(x * 1e30, y * 1e37, i) / 1e30 + math.hypot(x * 1e-30, y * 1e-37) * 1e30
""".strip().splitlines()
"""Expressions that are computed within a few units in the last place."""

HELPERS = """
def second(y: float, n: int = 3) -> float:
    return y * n + 1

def mixed(a: float, b: int) -> float:
    return a / 2 + b

def pair(x: float, y: float) -> tuple[float, int]:
    return x + y, int(x)

def split(x: float, y: float) -> float:
    a, b = pair(x, y)
    return a * 2 + b

def halves(x: float, n: int) -> float:
    x = x / 2
    n += 1
    return x * n
"""

PROGRAMS = '''
def branches(x: float, y: float, i: int, j: int) -> float:
    """Sets one name here an int, there a float."""
    if x > y:
        a = 1
    elif i > 2:
        a = 0.5
    else:
        a = i
    return a / 2 + a

def early(x: float, y: float, i: int, j: int) -> float:
    if x > 0:
        return x
    if i:
        return i
    return y * 2

def swapped(x: float, y: float, i: int, j: int) -> float:
    a, b = x, y
    a, b = b, a - b
    i, j = j, i + j
    return a * 10 + b + i / 3 + j

def repeated(x: float, y: float, i: int, j: int) -> float:
    a = b = x * 0.3
    a += 1
    return a * b

def accumulated(x: float, y: float, i: int, j: int) -> float:
    total = 0
    for k in range(5):
        total += x * k
    for k in range(i & 7):
        total -= k
    for k in range(10, 0, -3):
        total = total * 0.5 + k
    for k in range(j, j + 3):
        total += k
    return total

def ranges_that_end_far(x: float, y: float, i: int, j: int) -> float:
    """A counter beyond these ends is no int."""
    total, last = 0, 0
    for k in range(2147483640, 2147483647, 5):
        total += 1
    for k in range(2147483640 - abs(i), 2147483647, 5):
        total, last = total * 2 + 1, k
    for k in range(-2147483640, -2147483647 + (j & 3), -3):
        total, last = total * 2 + 1, last ^ k
    for k in range(i, 9 + j, 3000000000):
        total, last = total * 2 + 1, last ^ k
    for k in range(-2147483647 + abs(i), 2147483647, 3000000000):
        total, last = total * 2 + 1, last ^ k
    return total * 1e-3 + last

def left_early(x: float, y: float, i: int, j: int) -> float:
    total = 0.0
    for k in range(20):
        if k == i:
            break
        if k % 2 == 0:
            continue
        total += k * x
    return total + k

def counted_within(x: float, y: float, i: int, j: int) -> float:
    total = 0
    for k in range(6):
        total += k
        k = k * 2
        total += k
    return total + k

def nested(x: float, y: float, i: int, j: int) -> float:
    total = 0.0
    for row in range(3):
        for column in range(row + 1):
            if column == 1 and i > 0:
                break
            total += row * 10 + column
        else_here = row
        total += else_here
    return total

def halved(x: float, y: float, i: int, j: int) -> float:
    n, steps = abs(i) + 1, 0
    while n > 1:
        n //= 2
        steps += 1
    while True:
        steps += 1
        if steps > 7:
            break
    return steps + n

def listed(x: float, y: float, i: int, j: int) -> float:
    zeros = [0] * 4
    some = [x, 1, y]
    for k in range(len(zeros)):
        zeros[k] = k * i
    zeros[1] += 0.5
    zeros[-1] -= some[0]
    some[i % 3] = 7
    return zeros[0] + zeros[1] * 3 + zeros[2] + zeros[3] + some[j % 3] + len(some)

def in_place(x: float, y: float, i: int, j: int) -> float:
    a, n, yes = x, i, x > 0
    a -= y - 1
    a *= 1 + y
    a /= 2 + abs(y)
    a //= 0.25
    a %= 3
    n -= j
    n *= 2
    n //= 3
    n %= 5
    n |= 8
    n <<= 1
    yes &= y > 0
    return a + n + yes

def annotated(x: float, y: float, i: int, j: int) -> float:
    total: float = 0
    count: int = 3
    total += count / 2
    return total // 1

def odd_names(x: float, y: float, i: int, j: int) -> float:
    double, sin, real, p, AGENTS, State, _, größe = x, y, i, j, 1, 2, 3, 4
    new = double + sin
    return new * real + p + AGENTS + State + _ + größe

def words_of_the_other(x: float, y: float, i: int, j: int) -> float:
    nullptr, bitor, noexcept, decltype, typeid = x, y, i, j, 1
    compl, requires, static_cast, char8_t, thread_local, static_assert = 1, 2, 3, 4, 5, 6
    return nullptr + bitor * noexcept - decltype + typeid + compl + requires + static_cast + char8_t + thread_local

def named_as_made(x: float, y: float, i: int, j: int) -> float:
    """Names that the translation might give to what it makes."""
    second_1 = mixed_2 = pair_3 = split_4 = halves_5 = 3
    constants1_ = value1_ = drawn1_ = Results1 = Results_1 = Constants_1 = 4
    Rule_second_1 = Rule_mixed_2 = 5
    a, b = pair(x, y)
    made = second(x, second_1) + mixed(y, i) + LEVELS[i & 3] + halves(x, 2) + split(x, y) + a + b
    return made + mixed_2 + pair_3 + split_4 + halves_5 + constants1_ + value1_ + drawn1_ + Results1 + Results_1 + (
        Constants_1 + Rule_second_1 + Rule_mixed_2
    )

def lazily(x: float, y: float, i: int, j: int) -> float:
    known = (i != 0 and 6 // i > 1) or (y != 0.0 and x / y > 0.5)
    return 1 if known and not (i == 1 or j == 1) else 0

def unreached(x: float, y: float, i: int, j: int) -> float:
    if not YES:
        z = 1
    else:
        z = 2.5
    return z
    return 5
'''


def function_names() -> list[str]:
    """The names of what is computed: ``e0(x, y, i, j)`` and so on, ``near0``, and the programs."""
    named = [line.split("(")[0].removeprefix("def ") for line in PROGRAMS.splitlines() if line.startswith("def ")]
    return [*(f"e{n}" for n in range(len(EXPRESSIONS))), *(f"near{n}" for n in range(len(NEAR))), *named]


def computing_source() -> str:
    """A module whose ``step`` computes every function, and keeps what each gives in a field of its name."""
    head = "(x: float, y: float, i: int, j: int) -> float"
    parts = [HEADER, HELPERS, PROGRAMS]
    parts += [f"def e{n}{head}:\n    return float({text})\n" for n, text in enumerate(EXPRESSIONS)]
    parts += [f"def near{n}{head}:\n    return {text}\n" for n, text in enumerate(NEAR)]
    stores = [f"    s.r_{name} = {name}(s.x, s.y, int(s.m), int(s.n))" for name in function_names()]
    zeros = [f"    s.r_{name} = 0" for name in function_names()]
    parts += ["def step(s: State, p: Params, action: Action, random: Random):", *stores, "    return 0.0, False\n"]
    parts += ["def reset(s: State, p: Params, random: Random):", *zeros, "    s.x = s.y = s.m = s.n = 0\n"]
    parts += ["def observe(s: State, p: Params, observation: Observation):", "    observation[0] = s.x\n"]
    return "\n".join(parts)


def import_source(source: str, folder: Path, name: str = "rules_of_test") -> ModuleType:
    """Imports a text as a module, so that its source can be read."""
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(source))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    imported = importlib.util.module_from_spec(spec)
    sys.modules.pop(name, None)
    spec.loader.exec_module(imported)
    return imported


def rules_of(imported: ModuleType) -> gpu_envs.Rules:
    """The rules in a module, by their names."""
    names = ("reset", "step", "observe", "look", "allow", "measure")
    return gpu_envs.Rules(**{name: getattr(imported, name) for name in names if hasattr(imported, name)})


def computing_spec(folder: Path) -> tuple[gpu_envs.EnvSpec, ModuleType]:
    """The environment that computes every function, and the module for Python to do the same."""
    imported = import_source(computing_source(), folder)
    fields = ["x", "y", "m", "n", *(f"r_{name}" for name in function_names())]
    spec = gpu_envs.EnvSpec(
        id="Computing-v0",
        header=rules_of(imported),
        state=tuple(fields),
        params={"unused": gpu_envs.Param(1.0)},
        observation=gymnasium.spaces.Box(-1, 1, (1,), np.float32),
        action=gymnasium.spaces.Discrete(2),
    )
    return spec, imported


def samples() -> Mapping[str, Sequence[float]]:
    """Numbers to compute with: signs, halves, whole ones, and such as division rounds."""
    reals = (-7.5, -3.0, -0.3, 0.1, 0.5, 2.0, 12.7)
    integers = (-7, -3, 1, 2, 6)
    rows = list(itertools.product(reals, reals, (*integers, 0), integers))
    return {name: [float(row[n]) for row in rows] for n, name in enumerate(("x", "y", "m", "n"))}
