"""Inactive elements of actions: masks leave them one choice if ``active_heads`` is set."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, MultiDiscrete
from harness import HAS_TORCH, Place, numpy_of, restored_registry
from nvrtc import nvrtc_missing, ptx_of
from small_envs import chase

import gpu_envs
from gpu_envs import Field, MultiAgentEnv, Param, Role, Rules, TeamSpec, TranslationError
from gpu_envs.backend.program import Device
from gpu_envs.codegen import SimulationConfig, generate, layout_of
from gpu_envs.rules import Mask, Params, Row, Team, TeamActions, World
from gpu_envs.testing.report import FailedError
from gpu_envs.testing.sameness import idle_elements
from gpu_envs.testing.subject import Subject

SIZES = [3, 2, 4]
TURNS = {
    "reset": "FOR_EACH_AGENT(i, AGENTS) w.x[i] = 0;",
    "step": "FOR_EACH_AGENT(i, AGENTS) w.reward[i] = real(actions[i][w.elapsed % 2]);",
    "observe": "row[0] = float(w.elapsed);\n    row[1] = float(i);",
    "further": """FN void allow(const World& w, const Params&, int i, const Mask& mask) {
    mask[2] = false;
    if (i == 1) mask[0] = false;
}
FN bool active(const World& w, const Params&, int i, int j) { return j == (w.elapsed + 1) % 2 || j == 2; }
""",
}


def reset(w: World, p: Params, team: Team) -> None:  # noqa: ARG001
    for i in team.agents():
        w.x[i] = 0


def step(w: World, p: Params, team: Team, actions: TeamActions) -> None:  # noqa: ARG001
    for i in team.agents():
        w.reward[i] = actions[i][w.elapsed % 2]


def observe(w: World, p: Params, i: int, row: Row) -> None:  # noqa: ARG001
    row[0] = w.elapsed
    row[1] = i


def allow(w: World, p: Params, i: int, mask: Mask) -> None:  # noqa: ARG001
    mask[2] = False
    if i == 1:
        mask[0] = False


def active(w: World, p: Params, i: int, j: int) -> bool:  # noqa: ARG001
    return j == (w.elapsed + 1) % 2 or j == 2


MORE = ("roles", "params", "shared", "action_mask", "active_heads", "max_episode_steps")
"""Fields of the spec that are the same in both languages."""


@pytest.fixture(params=["C++", "Python"])
def spec(request: Any, tmp_path: Path) -> TeamSpec:
    """Two agents that alternate between two elements, and one agent with a third element."""
    seen, more = Box(0, 99, (2,), np.float32), dict[str, Any]()
    more = {
        "roles": (Role("pair", 2, seen, MultiDiscrete(SIZES[:2])), Role("other", 1, seen, MultiDiscrete(SIZES))),
        "params": {"unused": Param(0)},
        "shared": {},
        "action_mask": True,
        "active_heads": True,
        "max_episode_steps": 6,
    }
    if request.param == "C++":
        made: TeamSpec = chase(tmp_path, "Turns-v0", more=more, **TURNS)
        return made
    rules = Rules(reset=reset, step=step, observe=observe, allow=allow, active=active)
    return TeamSpec(id="Turns-v0", header=rules, state={"x": Field()}, **more)


def expected(step: int, agent: int, *, masked: bool) -> list[int]:
    """The expected mask: forbidden choices, and first choices of inactive elements if these are masked."""
    sizes = SIZES if agent == 2 else SIZES[:2]
    parts = [[1] * size for size in sizes]
    parts[0][2], parts[0][0] = 0, int(agent != 1)
    for j, part in enumerate(parts):
        if masked and j == step % 2:
            part[:] = [1] + [0] * (len(part) - 1)
    return [entry for part in parts for entry in part]


@pytest.mark.parametrize("masked", [False, True])
def test_masks(spec: TeamSpec, place: Place, masked: bool) -> None:
    env = MultiAgentEnv(spec, 3, device=place.device, output=place.output, active_heads=masked)
    _, infos = env.reset(seed=0)
    for step in range(5):
        masks = infos["action_mask"]
        for agent in range(3):
            found = numpy_of(masks["pair"])[:, agent] if agent < 2 else numpy_of(masks["other"])[:, 0]
            assert found.tolist() == [expected(step, agent, masked=masked)] * 3
        *_, infos = env.step({"pair": np.ones((3, 2, 2), int), "other": np.ones((3, 1, 3), int)})


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
def test_inactive_elements_get_no_gradient(spec: TeamSpec, device: str) -> None:
    """Their choices have probability one, so they add nothing to log-probability, entropy and gradient."""
    import torch
    from trainers import small_run

    from gpu_envs.training import Trainer

    with restored_registry():
        gpu_envs.register(spec)
        trainer = Trainer(small_run(device, "Turns-v0", num_envs=4, horizon=6, epochs=1, minibatches=1))
        trainer.roll_out()
        learner: Any = trainer.learners["other"]
        learner.finish_rollout(trainer.horizon_env.storage)
        rows, batch = learner.samples
        logits, _ = learner.module(rows)
        actions = batch.actions.long()
        step = torch.arange(6, device=device).repeat_interleave(4)
        logits = torch.where(torch.arange(9, device=device) == 2, -torch.inf, logits)  # the third choice is forbidden
        parts: list[Any] = [torch.distributions.Categorical(logits=part) for part in torch.split(logits, SIZES, 1)]
        each = torch.stack([part.log_prob(actions[:, j]) for j, part in enumerate(parts)], 1)
        means = torch.stack([step % 2 == 1, step % 2 == 0, torch.ones_like(step, dtype=torch.bool)], 1)
        torch.testing.assert_close(batch.log_probs, torch.where(means, each, 0.0).sum(1), rtol=1e-5, atol=1e-6)
        assert (actions[:, :2][~means[:, :2]] == 0).all()


def test_the_checker_verifies_inactive_elements(spec: TeamSpec, tmp_path: Path) -> None:
    assert "do not depend on inactive elements" in idle_elements(Subject(spec, 4, 5, 0, {}), "cpu")
    text = TURNS["further"].replace("(w.elapsed + 1)", "w.elapsed")
    wrong = chase(tmp_path, "Late-v0", more={n: getattr(spec, n) for n in MORE}, **TURNS | {"further": text})
    with pytest.raises(FailedError, match=r"in step 1, rewards.* the next step, when elapsed is greater by one"):
        idle_elements(Subject(wrong, 4, 5, 0, {}), "cpu")


def test_regions_decide_one_thing_at_a_time() -> None:
    """Masked elements have no effect in the next step."""
    masked_env, plain = envs = [
        gpu_envs.make("RiceN-v0", 4, device="cpu", num_regions=3, negotiation=True, active_heads=active)
        for active in (True, False)
    ]
    masked_env.reset(seed=0)
    plain.reset(seed=0)
    space = masked_env.single_action_spaces["region"]
    assert isinstance(space, MultiDiscrete)
    sizes = space.nvec
    rng = np.random.default_rng(0)
    for stage in (1, 2, 0) * 3:  # proposals, decisions, and what is then done
        masks = [np.split(env.action_mask["region"], np.cumsum(sizes)[:-1], -1) for env in envs if env.action_mask]
        means = np.array([j in {0: range(9), 1: range(9, 15), 2: range(15, 18)}[stage] for j in range(len(sizes))])
        for meant, some, every in zip(means, *masks, strict=True):
            assert (some == (every if meant else np.eye(1, some.shape[-1]))).all()
        actions = rng.integers(1, sizes, (4, 3, len(sizes)))
        masked_env.step({"region": np.where(means, actions, 0)})
        plain.step({"region": actions})
        assert all((masked_env.state[name] == plain.state[name]).all() for name in plain.state)


@pytest.mark.skipif(bool(nvrtc_missing()), reason=nvrtc_missing() or "it is there")
@pytest.mark.parametrize("pairs", [2, 300, 5000])
def test_it_compiles_for_every_schedule(spec: TeamSpec, pairs: int) -> None:
    many = dataclasses.replace(spec, roles=(dataclasses.replace(spec.roles[0], count=pairs), spec.roles[1]))
    config = SimulationConfig(many, 8, "SameStep", "float32", 6, many.check_params({}, 1), active_heads=True)
    layout = layout_of(config, Device(on_gpu=True, processors=132, shared_bytes=227 * 1024), frozenset())
    (module,) = layout.modules
    ptx_of(generate(layout, module).source)


def test_errors(spec: TeamSpec) -> None:
    with pytest.raises(ValueError, match=r"active_heads=True needs masks: give action_mask=True too"):
        dataclasses.replace(spec, action_mask=None)
    silent = dataclasses.replace(spec, active_heads=False)
    if isinstance(spec.header, Rules):
        with pytest.raises(
            TranslationError, match=r"the rules have active, but the spec does not have active_heads=True"
        ):
            MultiAgentEnv(silent, 2, device="cpu")
        less = dataclasses.replace(spec, header=dataclasses.replace(spec.header, active=None))
        with pytest.raises(TranslationError, match=r"active_heads is True, but the rules have no active"):
            MultiAgentEnv(less, 2, device="cpu")
    else:
        less = dataclasses.replace(spec, header=Path(str(spec.header)).with_name("less.cuh"))
        Path(str(less.header)).write_text(Path(str(spec.header)).read_text().replace("bool active(", "bool lively("))
        with pytest.raises(ValueError, match=r"active_heads=True, but .*less\.cuh has no function active"):
            MultiAgentEnv(less, 2, device="cpu")
        with pytest.raises(ValueError, match=r"has active\(\.\.\.\), but the spec has no active_heads=True"):
            MultiAgentEnv(silent, 2, device="cpu")
        with pytest.raises(ValueError, match=r"active_heads=True, but its rules do not define active heads"):
            MultiAgentEnv(silent, 2, device="cpu", active_heads=True)
    with pytest.raises(ValueError, match=r"CartPole-v1: active_heads=True, but its rules do not define"):
        gpu_envs.make("CartPole-v1", 2, device="cpu", active_heads=True)
