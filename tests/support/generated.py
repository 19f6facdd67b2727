"""Random parameter values and random calls: an environment must accept valid ones and reject invalid ones."""

import copy
import datetime
import decimal
import fractions
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from harness import HAS_TORCH, PLACES, Place, assert_same_bits, on_host, sentinel_array, to_place
from registered import (
    RESULTS,
    Variant,
    distant_starts,
    draw_actions,
    first_real,
    has_integer_actions,
    join_actions,
    place_actions,
    roles_of,
    shape_of,
    step_outcome,
    storage_place,
)

import gpu_envs
from gpu_envs import ActionError, Step

REFUSED = (ValueError, TypeError, KeyError, gymnasium.error.Error, gymnasium.error.ClosedEnvironmentError)
"""Exceptions that an invalid call may raise."""

ODD: tuple[Any, ...] = (
    *(None, "9.8", "", "euler", b"1.5", bytearray(b"1"), True, False, np.True_, 1j, np.complex64(2), 1.5 + 0j),
    *(np.timedelta64(5, "s"), np.timedelta64(5, "ns"), np.datetime64("2020-01-01"), datetime.timedelta(1)),
    *(float("nan"), float("inf"), float("-inf"), 1e39, -1e39, 1e300, 1e-50, 1e-40, 10**30, 10**400, 2**31),
    *(0, 0.0, -0.0, -1, 2, 2.5, -(2**31), 2**63, np.float16(0.5), np.float64(3), np.longdouble(2), np.uint8(3)),
    *(decimal.Decimal("1.5"), fractions.Fraction(3, 4), object(), {}, {"a": 1}, set(), (), [], range(3), Ellipsis, int),
    *(
        [None],
        [[1.0], [1.0, 2.0]],
        [1.0, "a"],
        ["a"],
        np.zeros((2, 2)),
        np.array(2.5),
        np.array("euler"),
        np.array(None),
    ),
    *(np.array([1, 2], "m8[s]"), np.array([1j, 2]), np.zeros(2, [("a", "f4")]), lambda: 1.0, memoryview(b"abcd")),
)
"""Values of many types; few of them are valid parameters."""


def numbers(spec: gpu_envs.Spec) -> dict[str, gpu_envs.Param]:
    """Returns scalar parameters and options that users can set."""
    return {n: p for n, p in spec.settings.items() if not p.rank and not isinstance(p, gpu_envs.Derived)}


def some_value(rng: np.random.Generator, param: gpu_envs.Param, count: int) -> Any:
    """Returns a valid, nearly valid or arbitrary value for a parameter."""
    usual: list[Any] = {
        "real": [param.default, 0.5, np.float32(0.25), param.minimum, param.maximum, *rng.uniform(-3, 3, 4).tolist()],
        "int": [param.default, np.int64(param.default) if param.kind == "int" else 0, param.minimum, param.maximum],
        "bool": [True, False, np.True_, 0, 1],
        "choice": [*param.choices, np.str_((*param.choices, "none")[0])],
    }[param.kind]
    if param.baked:
        usual = [param.default, 0.25]  # each value is a program
    kind = rng.integers(6)
    if kind == 0:
        return ODD[rng.integers(len(ODD))]
    value = usual[rng.integers(len(usual))]
    if kind <= 2:
        return value
    values = [usual[rng.integers(len(usual))] for _ in range(count + int(rng.integers(-1, 2) * (rng.random() < 0.3)))]
    if rng.random() < 0.3 and values:
        values[rng.integers(len(values))] = ODD[rng.integers(len(ODD))]
    forms: list[Callable[[Any], Any]] = [list, tuple]
    if param.kind == "real" and all(isinstance(v, float) and not 1e30 < abs(v) < np.inf for v in values):
        forms += [np.array, lambda v: np.array(v, ">f8"), lambda v: np.array(v, np.float32), lambda v: np.array([v])]
        if HAS_TORCH:
            import torch

            forms += [torch.tensor, lambda v: torch.tensor(v, dtype=torch.float64, requires_grad=True)]
    return forms[rng.integers(len(forms))](values)


class Calls:
    """Makes valid and invalid calls of an environment, and only the valid ones of its twin on the CPU."""

    def __init__(self, seed: int, variant: Variant) -> None:
        """Makes both environments with random options."""
        self.rng = rng = np.random.default_rng(seed)
        mode = str(rng.choice(["NextStep", "SameStep", "Disabled"]))
        self.place = PLACES[rng.integers(len(PLACES))]
        self.count = int(rng.choice([1, 2, 5, 70]))
        arguments = {**variant.arguments, "autoreset_mode": mode, "first_replica": int(rng.choice([0, 7]))}
        copies = bool(rng.integers(2)) or (self.place.output == "numpy" and self.place.device != "cpu")
        self.env: Any = gpu_envs.make(
            variant.env_id,
            self.count,
            **self.place._asdict(),
            copy=copies,
            threads=int(rng.integers(1, 3)),
            **arguments,
        )
        self.twin: Any = gpu_envs.make(variant.env_id, self.count, device="cpu", threads=1, **arguments)
        self.real, self.team = first_real(variant), variant.has_team
        spec = self.env.env_spec
        paired = {name for pair in spec.ordered for name in pair} | {self.real}
        free = (n for n, p in numbers(spec).items() if p.kind == "real" and not (p.fixed or p.baked or n in paired))
        self.other = next(free)
        self.kept: list[Any] = []
        self.begun = False
        self.log = [f"seed {seed}: {self.env!r}, copy={copies}, {variant.params}"]

    def take(self) -> None:
        """Makes one random call; two in five are invalid."""
        rng = self.rng
        if not self.begun or rng.random() < 0.02:
            if not self.begun and rng.random() < 0.3:
                self._refused(
                    "step before a reset", lambda: self.env.step(place_actions(self.env, draw_actions(self.env, 1)[0]))
                )
            else:
                self._reset(everything=True)
        elif rng.random() < 0.4:
            name, wrong = self._wrong()[rng.integers(len(self._wrong()))]
            self._refused(name, wrong)
        else:
            right = [self._step] * 8 + [self._reset, self._observe, self._set, self._write, self._snapshot, self._copy]
            right += [self._some, self._fork]
            right += [self._rollout] * (not self.team and self.env.autoreset_mode is not AutoresetMode.DISABLED)
            right[rng.integers(len(right))]()

    def finish(self) -> None:
        """Checks that both environments have the same state, and that a closed environment rejects calls."""
        if self.begun:
            assert_same_bits(on_host(self.env.get_state()), on_host(self.twin.get_state()), "at the end")
        self.env.close()
        for use in (lambda: self.env.reset(seed=0), self.env.observe, self.env.get_state, lambda: self.env.step(None)):
            self._refused("use after close", use)

    # --- valid calls, of both environments ---

    def _both(self, name: str, act: Callable[[Any], Any], other: Callable[[Any], Any] | None = None) -> None:
        self.log.append(name)
        found, expected = act(self.env), (other or act)(self.twin)
        assert_same_bits(on_host(found), on_host(expected), name)

    def _ended(self) -> np.ndarray:
        episode = on_host(self.twin.get_state()["episode"])
        return np.asarray(np.asarray(episode["over"] if self.team else episode["ended"]) != 0)

    def _reset(self, everything: bool = False) -> None:
        rng = self.rng
        options: dict[str, Any] = distant_starts(self.env) if rng.random() < 0.3 else {}
        low_high = sorted(rng.uniform(-0.05, 0.05, 2).tolist())
        if {"low", "high"} <= set(self.env.env_spec.options) and rng.random() < 0.3:
            options |= {"low": low_high[0], "high": np.float64(low_high[1])}
        mask = rng.random(self.count) < 0.5
        place = self.place if self.place.output != "numpy" else Place("cpu", "numpy")
        masked = mask.any() and not everything and rng.random() < 0.7
        seeds = [None if rng.random() < 0.3 else int(s) for s in rng.integers(0, 2**40, self.count)]
        seed = [None, int(rng.integers(100)), seeds][1 if everything else rng.integers(3)]

        def reset(env: Any, own: Any) -> Any:
            return env.reset(seed=seed, options={**options, **({"reset_mask": own} if masked else {})})[0]

        self.begun = True
        name = f"reset seed={seed} {list(options)} {mask if masked else ''}"
        self._both(name, lambda env: reset(env, to_place(mask, place)), lambda env: reset(env, mask))

    def _step(self) -> None:
        if self.env.autoreset_mode is AutoresetMode.DISABLED and (over := self._ended()).any():
            self._both("reset of who is over", lambda env: env.reset(options={"reset_mask": over})[0])
            return
        actions = draw_actions(self.env, 1, int(self.rng.integers(2**31)))[0]
        if has_integer_actions(self.env) and self.rng.random() < 0.3:
            actions = {
                role: values.astype(self.rng.choice(["int32", "uint8", "int16"])) for role, values in actions.items()
            }
        place = self.place if self.rng.random() < 0.5 else Place("cpu", "numpy")
        out = self._storage() if self.rng.random() < 0.3 else None
        self._both(
            f"step, actions of {place}, out={out and [n for n in RESULTS if getattr(out, n) is not None]}",
            lambda env: step_outcome(env, env.step(place_actions(env, actions, place), out=out)),
            lambda env: step_outcome(env, env.step(join_actions(env, actions))),
        )

    def _storage(self) -> Step:
        names = [name for name in RESULTS if self.rng.random() < 0.5]
        where = storage_place(self.place)
        given = {n: {r: sentinel_array(where, *shape_of(self.env, n, r)) for r in roles_of(self.env)} for n in names}
        return Step(**{name: join_actions(self.env, arrays) for name, arrays in given.items()})

    def _observe(self) -> None:
        self._both("observe", lambda env: env.observe())
        self._both("params", lambda env: [env.get_attr(name) for name in env.params])

    def _set(self) -> None:
        default = self.env.env_spec.params[self.real].default
        factors = 1 + self.rng.uniform(0, 0.2, self.count)
        value: Any = default * factors if self.rng.random() < 0.5 else default * float(factors[0])
        if self.rng.random() < 0.3:
            shared = float(self.env.env_spec.params[self.other].default * factors[0])
            self._both(f"set_attr {self.other} = {shared}", lambda env: env.set_attr(self.other, shared))
        elif self.rng.random() < 0.5:
            self._both(f"set_attr {self.real} {np.shape(value)}", lambda env: env.set_attr(self.real, value))
        else:
            self._both(f"params[{self.real}] = {np.shape(value)}", lambda env: env.params.__setitem__(self.real, value))

    def _write(self) -> None:
        """Writes into the live arrays of a parameter, if it differs between replicas, and of the state."""
        at, factor = int(self.rng.integers(self.count)), float(1 + self.rng.uniform(0, 0.2))
        default = self.env.env_spec.params[self.real].default

        def write(env: Any) -> None:
            live = env.params[self.real]
            if np.ndim(live):
                live[at] = default * factor
            name = next(iter(env.state))
            env.state[name][at] = env.state[name][0]

        self._both(f"writes at {at}", write)

    def _snapshot(self) -> None:
        """Takes a snapshot, or restores an earlier one, possibly of the other environment."""
        if self.kept and self.rng.random() < 0.6:
            one, other = self.kept[self.rng.integers(len(self.kept))]
            one, other = (one, other) if self.rng.random() < 0.5 else (other, one)
            self._both("set_state", lambda env: env.set_state(one), lambda env: env.set_state(other))
        else:
            self.log.append("get_state")
            self.kept.append((self.env.get_state(), self.twin.get_state()))
            assert_same_bits(on_host(self.kept[-1][0]), on_host(self.kept[-1][1]), "get_state")

    def _some(self) -> None:
        """Copies snapshots of some replicas to others, with the same or fresh random numbers."""
        written, randomness = self.rng.permutation(self.count)[: self.rng.integers(1, self.count + 1)], "kept"
        rows = self.rng.integers(0, self.count, len(written) if self.rng.random() < 0.5 else 1)
        if self.rng.random() < 0.5:
            randomness = "fresh"
        where = None if len(written) == self.count and self.rng.random() < 0.5 else written
        name = f"{rows} to {where}, {randomness}"
        self._both(name, lambda env: env.set_state(env.get_state(rows), where, randomness))

    def _fork(self) -> None:
        """Compares forks with two copies per replica, then continues in forks with one."""
        self._both("fork(2)", lambda env: env.fork(2, randomness="fresh").get_state())
        self.log.append("fork(1)")
        self.env, self.twin = self.env.fork(1), self.twin.fork(1)

    def _copy(self) -> None:
        self.log.append("copy")
        self.env = copy.deepcopy(self.env) if self.rng.random() < 0.5 else pickle.loads(pickle.dumps(self.env))

    def _rollout(self) -> None:
        steps, per_step = int(self.rng.integers(1, 6)), bool(self.rng.integers(2))
        block = None
        if self.rng.random() < 0.5:
            block = np.stack([step["agent"] for step in draw_actions(self.env, steps, int(self.rng.integers(2**31)))])
        self._both(f"rollout {steps} {per_step}", lambda env: env.rollout(steps, block, per_step=per_step))

    # --- invalid calls, of one environment ---

    def _refused(self, name: str, act: Callable[[], object]) -> None:
        self.log.append(f"wrong: {name}")
        try:
            act()
        except REFUSED:
            return
        raise AssertionError(f"{name} was taken")

    def _wrong(self) -> list[tuple[str, Callable[[], object]]]:
        env, rng, none = self.env, self.rng, np.zeros(self.count, bool)
        seeds: tuple[Any, ...] = (-1, 1.5, b"1", "1", [1] * (self.count + 1))
        options: tuple[Any, ...] = (0, [], "x", {"nothing": 1}, {"low": "x"})
        outs: tuple[Any, ...] = ([], (), 0, {"rewards": 1}, Step(rewards=3))
        states: tuple[Any, ...] = (None, 3, {}, {"state": {}}, [])
        values: tuple[Any, ...] = (None, "1", np.nan, 1e39, [None])
        return [
            *((f"reset(seed={s!r})", lambda s=s: env.reset(seed=s)) for s in seeds),
            *((f"reset({o!r})", lambda o=o: env.reset(options=o)) for o in options),
            *((f"mask {m!r}", lambda m=m: self._masked(m)) for m in (None, 1, [True], none)),
            ("mask's type", lambda: self._masked(np.ones(self.count, int))),
            ("mask's shape", lambda: self._masked(np.ones(self.count + 1, bool))),
            *((f"out={o!r}", lambda o=o: self._stepped(o)) for o in outs),
            ("out big-endian", lambda: self._stepped(self._one_out("rewards", lambda s, k: np.zeros(s, f">{k[0]}4")))),
            ("out too long", lambda: self._stepped(self._one_out("rewards", lambda s, k: np.zeros((*s, 2), k)))),
            ("out over the state", lambda: self._stepped(self._over_state())),
            ("actions of another shape", lambda: env.step(join_actions(env, self._longer()))),
            ("wrong actions", lambda: env.step(self._offending())),
            ("no actions", lambda: env.step(None)),
            *((f"set_state({s!r})", lambda s=s: env.set_state(s)) for s in states),
            *((f"set_state: {part}", lambda part=part: self._torn(part)) for part in ("state", "episode", "params")),
            *((f"set_attr({v!r})", lambda v=v: env.set_attr(self.real, v)) for v in values),
            ("set_attr of nothing", lambda: env.set_attr("nothing", 1.0)),
            ("params of nothing", lambda: env.params.__setitem__("nothing", 1.0)),
            ("state of nothing", lambda: env.state.__setitem__("nothing", 1.0)),
            ("text as state", lambda: env.state.__setitem__(next(iter(env.state)), "here")),
            ("state's shape", lambda: env.state.__setitem__(next(iter(env.state)), np.zeros((3, 5, 7, 9)))),
            ("a bad value in a live array", self._poisoned),
            ("stagger", lambda: env.stagger(rng)),
            *(() if self.team else ((f"rollout({n!r})", lambda n=n: env.rollout(n)) for n in (0, -1, 2.5, None, True))),
        ]

    def _masked(self, mask: Any) -> object:
        return self.env.reset(seed=1, options={"reset_mask": mask})

    def _stepped(self, out: Any) -> object:
        return self.env.step(place_actions(self.env, draw_actions(self.env, 1)[0]), out=out)

    def _one_out(self, name: str, made: Callable[[Any, str], Any]) -> Step:
        role = roles_of(self.env)[-1]
        array = made(*shape_of(self.env, name, role))
        return Step(**{name: {role: array} if self.team else array})

    def _over_state(self) -> Step:
        """Returns an output array that overlaps the environment's memory."""
        role = roles_of(self.env)[-1]
        name = f"observations.{role}" if self.team else "observations"
        buffer = self.env.simulation.buffers[name].reshape(-1)
        shape = shape_of(self.env, "rewards", role)[0]
        array = buffer[: int(np.prod(shape))].reshape(shape)
        return Step(rewards={role: array} if self.team else array)

    def _longer(self) -> dict[str, np.ndarray]:
        return {role: np.concatenate([a, a]) for role, a in draw_actions(self.env, 1)[0].items()}

    def _offending(self) -> Any:
        """Returns actions with one invalid action, of an active agent in a running episode."""
        actions, going = draw_actions(self.env, 1)[0], ~self._ended()
        role, junk = roles_of(self.env)[-1], 99 if has_integer_actions(self.env) else np.nan
        there = going
        if self.team:
            alive = np.asarray(self.twin.state["in_game"])[:, -actions[role].shape[1] :] != 0
            there = alive & (going[:, None] if self.env.autoreset_mode is not AutoresetMode.SAME_STEP else True)
        if not there.any():
            raise ActionError("no agent is active")
        actions[role][tuple(np.argwhere(there)[0])] = junk
        return join_actions(self.env, actions)

    def _torn(self, part: str) -> object:
        """Restores a snapshot whose last value of one part is invalid."""
        state = on_host(self.env.get_state())
        name = list(state[part])[-1]
        wrong: list[Any] = [np.array(["a"] * self.count), np.zeros((self.count, 3, 3, 3)), None]
        if part == "params":
            name, wrong = self.real, [np.full(self.count, np.nan), "1", None, np.full(self.count + 1, 1.0), 1e39]
        for values in (v for key in ("state", "episode") for v in state[key].values()):
            values[...] = 0
        state[part][name] = wrong[self.rng.integers(len(wrong))]
        return self.env.set_state(state)

    def _poisoned(self) -> None:
        """Writes NaN into a live array, checks that calls reject it, and restores the value."""
        live = self.env.params[self.real]
        if not np.ndim(live):
            raise ValueError("replicas share the value")
        at = int(self.rng.integers(self.count))
        before = float(live[at])
        live[at] = np.nan
        uses = [self.env.get_state, self.env.check, lambda: self.env.set_attr(self.real, None)]
        if self.env.device == "cpu":
            uses += [self.env.observe, lambda: self.env.reset(seed=3), lambda: self._stepped(None)]
        for use in uses:
            self._refused("use of NaN", use)
        live[at] = before
        raise ValueError("refused as it should be")
