"""A test team with arrays of every type, of agents and of the replica, tables, and action masks.

Its rules are in ``carriers.cuh``; this module also implements them in NumPy, one replica at a time.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from gpu_envs import Field, Param, Role, Table, TeamSpec

HOLDS, MOST_GOODS, FIRST_CHOICE = 3, 4, 10
BACK, ON, PIT = range(3)


def path(cells: int) -> np.ndarray:
    """Returns by cell: previous and next cell, -1 for none, and whether it is a pit (every seventh from the fourth)."""
    cell = np.arange(cells)
    return np.stack([cell - 1, np.where(cell + 1 < cells, cell + 1, -1), cell % 7 == 3], axis=1)


def tolls(cells: int) -> np.ndarray:
    """Returns the cost of each cell; float32 cannot represent these numbers exactly."""
    return (np.arange(cells) % 5 + 1) / 10


def _row(params: Mapping[str, Any], own: int) -> Box:
    return Box(-np.inf, np.inf, (2 + own + int(params["cells"]),), np.float32)


def _one(params: Mapping[str, Any]) -> int:
    """Returns the length of an array with one element."""
    del params
    return 1


CARRIERS = TeamSpec(
    id="Carriers-v0",
    header=Path(__file__).with_name("carriers.cuh"),
    description="Carriers fetch goods along a path of cells; diggers add goods.",
    roles=(
        Role("carrier", "carriers", lambda p: _row(p, HOLDS), Discrete(5, start=FIRST_CHOICE)),
        Role("digger", "diggers", lambda p: _row(p, 0), MultiDiscrete([3, 2])),
    ),
    state={
        "place": Field("int"),
        "cargo": Field("byte", HOLDS),
        "paid": Field("real", 2),
        "met": Field("agent", 2),
        "visited": Field("bool", lambda p: int(p["cells"])),
    },
    shared={
        "board": Field("int", lambda p: int(p["cells"])),
        "ledger": Field("agent", lambda p: int(p["lines"])),
        "delivered": Field("int", _one),
        "dearest": Field(),
    },
    scratch={"wanted": Field("int"), "granted": Field("bool")},
    shared_scratch={"goods": Field("int"), "left": Field("int"), "lowest": Field("int", lambda p: int(p["cells"]))},
    tables={
        "path": Table(lambda p: path(int(p["cells"])), "int"),
        "tolls": Table(lambda p: tolls(int(p["cells"]))),
    },
    params={
        "carriers": Param(4, "carriers in a replica", positive=True, fixed=True),
        "diggers": Param(2, "diggers in a replica", positive=True, fixed=True),
        "cells": Param(6, "of the path", minimum=2, fixed=True),
        "lines": Param(8, "lines of the ledger, no fewer than cells", positive=True, fixed=True),
        "toll_rate": Param(0.5, "subtracted for a toll of one"),
        "goal": Param(6, "goods delivered that end an episode", positive=True),
    },
    columns=lambda p: int(p["cells"]),
    action_mask=True,
    max_episode_steps=13,
)


@dataclasses.dataclass
class Replica:
    """The state of one replica, and its rules."""

    params: Mapping[str, Any]
    fields: dict[str, Any]
    real: type[np.floating[Any]] = np.float32

    @property
    def agents(self) -> int:
        """Number of agents."""
        return len(self.fields["place"])

    def is_carrier(self, i: int) -> bool:
        """Whether agent ``i`` is a carrier; otherwise it is a digger."""
        return i < int(self.params["carriers"])

    def step(self, actions: np.ndarray, elapsed: int) -> tuple[np.ndarray, bool]:
        """Takes a step.

        Args:
            actions: ``[agents, 2]``; carriers' choices count from zero, and their second number is unused.
            elapsed: Number of steps of the episode, including this one.

        Returns:
            Every agent's reward, and whether the episode has terminated.
        """
        f, table = self.fields, path(int(self.params["cells"]))
        cost, rate = tolls(int(self.params["cells"])).astype(self.real), self.real(self.params["toll_rate"])
        present = [i for i in range(self.agents) if f["in_game"][i]]
        for i in present:
            choice = actions[i, 0]
            ahead = table[f["place"][i], choice - 1] if choice in (1, 2) else -1
            f["place"][i] = ahead if ahead >= 0 else f["place"][i]
            f["visited"][i, f["place"][i]] = True
        goods = f["board"].copy()
        pickers = [i for i in present if self.is_carrier(i) and actions[i, 0] == 3]
        rewards = np.zeros(self.agents, self.real)
        lowest = {cell: min(i for i in present if f["place"][i] == cell) for cell in {f["place"][i] for i in present}}
        for i in present:
            cell, delivered = f["place"][i], 0
            before = sum(f["place"][j] == cell for j in pickers if j < i)
            empty = np.flatnonzero(f["cargo"][i] == 0)
            if i in pickers and before < goods[cell] and len(empty):
                f["cargo"][i, empty[0]] = cell % 255 + 1
                f["board"][cell] -= 1
            elif self.is_carrier(i) and actions[i, 0] == 4:
                delivered = int((f["cargo"][i] != 0).sum())
                f["cargo"][i] = 0
                target = f["delivered"] if cell == 0 else f["board"]
                target[cell] += delivered
            elif not self.is_carrier(i) and actions[i, 1]:
                f["board"][cell] += 1
            f["met"][i] = lowest[cell], f["met"][i, 0]
            f["paid"][i] = f["paid"][i, 0] + cost[cell], f["paid"][i, 0]
            rewards[i] = self.real(delivered if cell == 0 else 0) - cost[cell] * rate
            f["in_game"][i] = not table[cell, PIT]
        for cell, agent in lowest.items():
            f["ledger"][(elapsed + cell) % len(f["ledger"])] = agent
        f["dearest"] = max(f["dearest"], f["paid"][0, 0])
        return rewards, bool(f["delivered"][0] >= self.params["goal"] or not f["in_game"].any())

    def observe(self, i: int) -> np.ndarray:
        """Returns the observation of a present agent."""
        f = self.fields
        cargo = f["cargo"][i] if self.is_carrier(i) else []
        return np.concatenate(
            [[f["place"][i], f["board"].sum()], cargo, f["board"] + 0.5 * f["visited"][i]], dtype=np.float32
        )

    def allow(self, i: int) -> np.ndarray:
        """Returns the action mask of a present agent."""
        f, table = self.fields, path(int(self.params["cells"]))
        cell = f["place"][i]
        ways = [True, table[cell, BACK] >= 0, table[cell, ON] >= 0]
        if self.is_carrier(i):
            return np.array([*ways, f["board"][cell] > 0 and (f["cargo"][i] == 0).any(), f["cargo"][i].any()], np.int8)
        return np.array([*ways, True, f["board"][cell] < MOST_GOODS], np.int8)
