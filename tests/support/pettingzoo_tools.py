"""Helpers for tests of the PettingZoo adapter."""

import importlib
from typing import Any

import pytest

import gpu_envs
from gpu_envs import TeamSpec

pettingzoo = pytest.importorskip("pettingzoo", minversion="1.27")


pz: Any = importlib.import_module("gpu_envs.adapters.pettingzoo")


def spec_of(team_id: str) -> TeamSpec:
    spec = gpu_envs.spec(team_id)
    assert isinstance(spec, TeamSpec)
    return spec


def namespace_of(team_id: str) -> Any:
    """Returns the adapter's module of an environment."""
    return getattr(pz, pz.parallel_env(team_id, device="cpu").metadata["name"])
