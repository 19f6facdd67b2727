"""Random rule functions as text, and a Python model of the state and random numbers to run them."""

import functools
import random
import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, final

import gymnasium
import numpy as np
from harness import numpy_of
from small_kernels import philox
from translation_cases import rules_of

import gpu_envs

HEAD = """
import math

from gpu_envs.rules import *
from gpu_envs.rules import Action, Observation, Params, Random, State

TABLE = (3, -1, 4, 1, -5, 9)

def early(v: float, k: int) -> float:
    for m in range(6):
        if m * m > k % 20:
            return v + m
        v -= 0.5
    return -v

def mixed(u: float, v: float = 0.5, n: int = 3) -> float:
    return u + 10.0 * v + 100.0 * n

def bump(s: State, by: int = 1) -> int:
    s.k = (s.k + by) % 50
    return s.k

def bump_row(s: State, at: int, to: float) -> float:
    before = s.r[at % 4]
    s.r[at % 4] = to * 0.5
    return before

def drawn(random: Random, most: float = 1.0) -> float:
    return random.uniform(0.0, most)

def drawn_below(s: State, random: Random, n: int) -> int:
    s.c[0] += 1
    return random.integer(n)

def two(s: State, random: Random) -> tuple[float, int]:
    return random.uniform(0.0, 1.0), bump(s)

def reset(s: State, p: Params, random: Random) -> None:
    s.k, s.f, s.out, s.a, s.b, s.x, s.y = 0, False, 0.0, 0, 0, 0.0, 0.0
    for j in range(4):
        s.c[j] = 0
        s.r[j] = 0.0

def observe(s: State, p: Params, observation: Observation) -> None:
    observation[0] = s.out
"""

ENDING = "x0 + x1 * 0.5 + x2 * 0.25 + i0 + i1 * 3 + i2 * 5 + yes + s.k + s.f + row[0] + row[1] * 2 + row[2] * 3"
"""Return expression of a function, which combines all its variables."""


def module_of(seed: int, count: int, *, exact: bool = True) -> str:
    """Returns a module whose step runs the function selected by the action; ``exact``: only exact operations."""
    functions = [Function(seed * 1000 + n, exact=exact).text(f"f{n}") for n in range(count)]
    step = ["def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:"]
    for n in range(count):
        word = "elif" if n else "if"
        step += [f"    {word} action == {n}:", f"        s.out = f{n}(s, p, s.a, s.b, s.x, s.y, random)"]
    return "\n".join([HEAD, *functions, *step, "    return 0.0, False", ""])


@final
class Function:
    """One random function."""

    def __init__(self, seed: int, *, exact: bool) -> None:
        self.random = random.Random(seed)
        self.exact = exact
        self.lines: list[str] = []
        self.ints = ["a", "b", "i0", "i1", "i2"]
        self.reals = ["x", "y", "x0", "x1", "x2"]
        self.indent, self.loops, self.made = 1, 0, 0

    def text(self, name: str) -> str:
        head = "s: State, p: Params, a: int, b: int, x: float, y: float, random: Random"
        self.lines = [f"def {name}({head}) -> float:"]
        for line in ("i0, i1, i2 = a, b % 5, 1", "x0, x1, x2 = x, y, 0.5", "yes = a > b", "row = [0, x, 1]"):
            self.emit(line)
        for _ in range(self.random.randrange(4, 10)):
            self.statement(2)
        self.emit(f"return {ENDING}")
        return "\n".join(self.lines) + "\n"

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def one(self, *options: str) -> str:
        return self.random.choice(options)

    # --- expressions ---

    def integer(self, depth: int) -> str:
        """Returns an int expression below 2^31."""
        if depth <= 0:
            return self.one(*self.ints, str(self.random.choice([0, 1, 2, 3, 7, -1, -3, -8])), "s.k", self.cell(0))
        i = functools.partial(self.integer, depth - 1)
        options: list[Callable[[], str]] = [
            lambda: f"({i()} {self.one('+', '-')} {i()})",
            lambda: f"({i()} % 101 * ({i()} % 53))",
            lambda: f"({i()} // (abs({i()}) % 9 + 1))",
            lambda: f"({i()} {self.one('%', '//')} {self.one('7', '-5', '3', '-2', '16')})",
            lambda: f"({i()} {self.one('&', '|', '^')} {i()})",
            lambda: f"(({i()}) % 1000 << {self.random.randrange(6)} >> {self.random.randrange(8)})",
            lambda: f"(({i()}) >> abs({i()} + b))",
            lambda: f"(({i()}) % 8 << abs({i()}) % 20)",
            lambda: f"int(math.log2(1 << abs({i()}) % 31) + math.log10(10.0 ** {self.random.randrange(-9, 10)}))",
            lambda: f"{self.one('abs', '-', '~', '+', 'int')}({i()})",
            lambda: f"{self.one('min', 'max')}({i()}, {i()})",
            lambda: f"({i()} if {self.truth(depth - 1)} else {i()})",
            lambda: f"{self.one('int', 'round', 'math.floor', 'math.ceil')}({self.bounded(self.real(depth - 1), 999)})",
            lambda: f"({self.truth(depth - 1)} + {i()})",
            lambda: f"({i()} % 97) ** {self.random.randrange(4)}",
            lambda: f"TABLE[{i()} % 6]",
            lambda: self.cell(depth - 1),
            lambda: f"random.integer({self.random.randrange(1, 9)})",
            lambda: self.one("bump(s)", f"bump(s, by={i()})", f"drawn_below(s, random, {self.random.randrange(1, 5)})"),
        ]
        return self.random.choice(options)()

    def real(self, depth: int) -> str:
        """Returns a float expression, or an int that is converted to float."""
        if depth <= 0:
            return self.one(*self.reals, "0.5", "-1.5", "2.25", "0.1", "p.n", self.held(0))
        r = functools.partial(self.real, depth - 1)
        options: list[Callable[[], str]] = [
            lambda: f"({self.number(depth - 1)} {self.one('+', '-')} {r()})",
            lambda: f"({r()} * {self.one('0.5', '0.25', '-0.75', '1.5')})",
            lambda: f"({self.number(depth - 1)} / (abs({r()}) + 0.5))",
            lambda: f"({self.bounded(r(), 1e5)} {self.one('//', '%')} {self.one('0.75', '-1.25', '3.0', 'math.inf')})",
            lambda: f"({self.bounded(r(), 1e5)} {self.one('//', '%')} (abs({self.bounded(r(), 1e5)}) + 0.125))",
            lambda: f"{self.one('min', 'max')}({self.number(depth - 1)}, {r()})",
            lambda: f"({r()} if {self.truth(depth - 1)} else {self.number(depth - 1)})",
            lambda: f"{self.one('abs', 'math.fabs', 'float', '-', '+')}({r()})",
            lambda: f"({self.integer(depth - 1)} / {self.one('2', '-4', '8')})",
            lambda: f"math.sqrt(abs({r()}))",
            lambda: f"math.copysign({r()}, {self.rounded(depth - 1)})",
            lambda: f"math.copysign({r()}, ({self.bounded(r(), 1e5)} * 0.0) ** 0.5)",
            lambda: f"math.fmod({self.bounded(r(), 1e5)}, {self.one('0.75', '3.0')})",
            lambda: f"early({self.bounded(r(), 1e5)}, {self.integer(depth - 1)} % 99)",
            lambda: f"mixed({r()}, n={self.integer(depth - 1)} % 99, v={r()})",
            lambda: f"bump_row(s, {self.integer(depth - 1)} % 99, {self.bounded(r(), 1e5)})",
            lambda: self.one("random.uniform(0.0, 4.0)", "drawn(random)", "drawn(random, most=2.0)"),
            lambda: self.held(depth - 1),
        ]
        if not self.exact:
            names = ("sin", "cos", "exp", "tanh", "atan", "expm1")
            sizes = ("1.0", "1e30", "1e-30")
            options += [
                lambda: f"math.{self.one(*names)}({self.bounded(r(), 9)})",
                lambda: f"min(math.hypot({r()} * {self.one(*sizes)}, {r()} * {self.one(*sizes)}), 1e6)",
                lambda: f"math.{self.one('log', 'log1p', 'log2', 'log10')}(abs({r()}) + 0.5)",
                lambda: f"math.atan2({r()}, {r()})",
                lambda: f"(abs({r()}) % 9 + 0.1) ** ({r()} % 3)",
                lambda: "random.normal(0.0, 2.0)",
            ]
        return self.random.choice(options)()

    def number(self, depth: int) -> str:
        return self.integer(depth) if self.random.random() < 0.4 else self.real(depth)

    def truth(self, depth: int) -> str:
        if depth <= 0:
            return self.one(f"({self.one(*self.ints)} > 1)", "s.f", "yes", f"({self.one(*self.reals)} <= 0.5)")
        b, n = functools.partial(self.truth, depth - 1), functools.partial(self.number, depth - 1)
        options: list[Callable[[], str]] = [
            lambda: f"({n()} {self.one('<', '<=', '>', '>=', '==', '!=')} {n()})",
            lambda: f"({n()} {self.one('<', '<=')} {n()} {self.one('<', '!=')} {n()})",
            lambda: f"({b()} {self.one('and', 'or')} {b()})",
            lambda: f"(not {b()})",
            lambda: f"({self.integer(depth - 1)} {self.one('in', 'not in')} (0, 1, -2, 5))",
            lambda: f"({b()} {self.one('==', '!=', '&', '|', '^')} {b()})",
            lambda: f"bool({n()})",
            lambda: f"math.isnan((x + {self.real(depth - 1)}) * math.inf {self.one('// 0.75', '// -3.0', '** 0.5')})",
            lambda: "(random.uniform(0.0, 1.0) < 0.5)",
            lambda: "(bump(s) > 9)",
        ]
        return self.random.choice(options)()

    def rounded(self, depth: int) -> str:
        """Returns a rounded float expression, which may be zero of either sign."""
        rounded = f"{self.one('round', 'math.floor', 'math.ceil')}({self.bounded(self.real(depth), 9)})"
        return self.one("", "-") + rounded

    def bounded(self, text: str, most: float) -> str:
        return f"min(max({text}, {-most}), {most})"

    def index(self, depth: int) -> str:
        if depth <= 0:
            return self.one(str(self.random.randrange(-4, 4)), f"{self.one(*self.ints)} % 4", "s.k % 4")
        return self.one(f"({self.integer(depth)}) % 4", "random.integer(4)", "bump(s) % 4")

    def cell(self, depth: int) -> str:
        return f"s.c[{self.index(depth)}]"

    def held(self, depth: int) -> str:
        return self.one(f"s.r[{self.index(depth)}]", f"row[{self.integer(depth)} % 3]")

    # --- statements ---

    def int_value(self, depth: int) -> str:
        return f"({self.integer(depth)}) % 2003 - 1001"

    def real_value(self, depth: int) -> str:
        return self.bounded(self.number(depth), 1e6)

    def statement(self, depth: int) -> None:
        """Emits one or more lines."""
        simple: list[Callable[[], None]] = [
            lambda: self.emit(f"{self.one('i0', 'i1', 'i2', 's.k')} = {self.int_value(3)}"),
            lambda: self.emit(f"{self.one('x0', 'x1', 'x2')} = {self.real_value(3)}"),
            lambda: self.emit(f"{self.cell(1)} = {self.int_value(2)}"),
            lambda: self.emit(f"{self.held(1)} = {self.real_value(2)}"),
            lambda: self.emit(f"s.f = {self.truth(2)}"),
            lambda: self.emit(f"x0, i0 = {self.one('two(s, random)', f'{self.real_value(2)}, {self.int_value(1)}')}"),
            lambda: self.emit(f"{self.held(0)}, x1 = x1, {self.real_value(2)}"),
            lambda: self.emit(f"i1, {self.cell(1)} = {self.int_value(1)}, i1"),
            lambda: self.emit(f"{self.one('x0', 'x1', self.held(1))} {self.one('+', '-')}= {self.real_value(2)}"),
            self.changed_in_place,
            self.counted_far,
        ]
        nested = [self.branch, self.counted, self.repeated, self.returned, *([self.left] if self.loops else [])]
        self.random.choice(simple + (nested if depth > 0 else []))()

    def changed_in_place(self) -> None:
        place = self.one("i0", "i1", "s.k", self.cell(0))
        sign = self.one("+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>")
        small = {"//": "-4", "%": "-11", "<<": "2", ">>": "3", "*": "-3"}
        self.emit(f"{place} {sign}= {small.get(sign) or self.integer(2)}")
        self.emit(f"{place} = {place} % 2003 - 1001")

    def block(self) -> None:
        self.indent += 1
        for _ in range(self.random.randrange(1, 4)):
            self.statement(1 if self.indent < 4 else 0)
        self.indent -= 1

    def branch(self) -> None:
        self.emit(f"if {self.truth(2)}:")
        self.block()
        if self.random.random() < 0.5:
            self.emit(f"elif {self.truth(2)}:")
            self.block()
        if self.random.random() < 0.6:
            self.emit("else:")
            self.block()

    def counted(self) -> None:
        name, step = self.one("j0", "j1", "i2"), self.one("", "", ", -1", ", 2", ", -2")
        first = self.one("0", "-1", f"({self.integer(1)}) % 5")
        end = self.one(f"({self.integer(2)}) % 7", "4", "min(max(s.k, -4), 5)", "p.n - s.k % 6", "bump(s) % 5")
        self.emit(f"for {name} in range({first}, {end}{step}):")
        self.within(name)

    def counted_far(self) -> None:
        """Emits a range up to the maximum int or down to the minimum, with steps that overflow."""
        sign, step = self.one("", "-"), self.one("2", "5", "7", "3000000000")
        first, end = self.one("20", f"({self.integer(1)}) % 30"), self.one("0", f"({self.integer(1)}) % 3")
        self.emit(f"for far in range({sign}(2147483647 - {first}), {sign}(2147483647 - {end}), {sign}{step}):")
        self.emit("    i1, x1 = far % 1009, x1 * 0.5 + 1")

    def repeated(self) -> None:
        self.made += 1
        turn = f"t{self.made}"
        self.emit(f"{turn} = 0")
        self.emit(f"while {turn} < 6 and {self.truth(2)}:")
        self.indent += 1
        self.emit(f"{turn} += 1")
        self.indent -= 1
        self.within(turn)

    def within(self, name: str) -> None:
        self.loops += 1
        self.ints.append(name)
        self.block()
        self.ints.remove(name)
        self.loops -= 1

    def left(self) -> None:
        self.emit(f"if {self.truth(1)}:")
        self.emit("    " + self.one("break", "continue"))

    def returned(self) -> None:
        self.emit(f"if {self.truth(2)} and {self.truth(1)}:")
        self.emit(f"    return {self.real_value(2)}")


# --- what Python runs ---


@final
class Numbers:
    """Random numbers of a replica's step, in double precision."""

    def __init__(self, seed: int, stream: int, episode: int, step: int) -> None:
        self.seed, self.counter, self.draws = seed, (step, episode, stream << 24), 0
        self.words: list[int] = []

    def word(self) -> int:
        if self.draws % 4 == 0:
            counter = np.array([[self.draws // 4, *self.counter]], np.uint64)
            self.words = philox(counter, (self.seed, 0))[0].tolist()
        self.draws += 1
        return self.words[(self.draws - 1) % 4]

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * (self.word() * 2.0**-32)

    def integer(self, n: int) -> int:
        return self.word() * n >> 32

    def bits(self) -> int:
        return (self.word() ^ 2**31) - 2**31

    def normal(self, mean: float, deviation: float) -> float:
        """Returns the mean; the standard deviation must be 0."""
        assert deviation == 0
        self.word()
        self.word()
        return mean


@final
class Held:
    """The state as on the device: stored values are converted to the field's type."""

    a: int
    b: int
    x: float
    y: float
    KINDS: ClassVar[dict[str, type]] = {"k": int, "f": bool, "out": float, "a": int, "b": int, "x": float, "y": float}

    def __init__(self, **given: Any) -> None:
        self.c, self.r = Cells(int), Cells(float)
        for name, kind in self.KINDS.items():
            setattr(self, name, kind(given.get(name, 0)))

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, self.KINDS[name](value) if name in self.KINDS else value)


@final
class Cells(list[Any]):
    """An array of four elements of one type."""

    def __init__(self, kind: type) -> None:
        super().__init__([kind(0)] * 4)
        self.kind = kind

    def __setitem__(self, at: Any, value: Any) -> None:
        super().__setitem__(at, self.kind(value))


# --- what a device runs ---

FIELDS = ("k", "f", "c", "r", "out")
"""Fields that functions change."""


def held_spec(made: types.ModuleType, functions: int) -> gpu_envs.EnvSpec:
    """Returns the spec of a module that starts with ``HEAD``, whose action selects the function of a step."""
    field = gpu_envs.Field
    return gpu_envs.EnvSpec(
        id="Generated-v0",
        header=rules_of(made),
        state={
            **dict.fromkeys(("k", "a", "b"), field("int")),
            **dict.fromkeys(("x", "y", "out"), field()),
            "f": field("bool"),
            "c": field("int", 4),
            "r": field("real", 4),
        },
        params={"n": gpu_envs.Param(7)},
        observation=gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32),
        action=gymnasium.spaces.Discrete(functions),
    )


def stepped(
    spec: gpu_envs.EnvSpec, given: Mapping[str, np.ndarray], precision: str, device: str = "cpu"
) -> dict[str, np.ndarray]:
    """Returns the state after a step in which consecutive replicas run each function on these numbers."""
    replicas = len(next(iter(given.values())))
    env = gpu_envs.VectorEnv(spec, replicas, device=device, precision=precision, max_episode_steps=-1, output="numpy")
    env.reset(seed=5)
    for name, values in given.items():
        env.state[name] = values
    assert isinstance(env.single_action_space, gymnasium.spaces.Discrete)
    functions = int(env.single_action_space.n)
    env.step(np.repeat(np.arange(functions), replicas // functions))
    state = {name: numpy_of(env.state[name]) for name in FIELDS}
    env.close()
    return state
