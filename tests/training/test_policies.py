"""Policies: assignment to agents, user modules, random and frozen policies."""

import copy
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import assert_same_bits, numpy_of
from trainers import FIELD, FIELD_PARAMS, GRID, MODULE_SETTINGS, last_checkpoint, off_policy_run, small_run

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gpu_envs.backend import resolve_device  # noqa: E402
from gpu_envs.errors import CheckpointError  # noqa: E402
from gpu_envs.seeds import derived_seed  # noqa: E402
from gpu_envs.training import PPO, ActorCritic, Network, PolicyModule, RunDirectory, Trainer, evaluate, train  # noqa: E402
from gpu_envs.training.assembly import Player, make_player  # noqa: E402
from gpu_envs.training.engines import Case  # noqa: E402
from gpu_envs.training.heads import Head  # noqa: E402
from gpu_envs.training.modules import default_policy  # noqa: E402
from gpu_envs.training.record.checkpoint import load, save  # noqa: E402
from gpu_envs.training.rollout.plan import PolicyRole, PolicyRows, RoleMembers, assign  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

Tensor = Any
FIVE = Head("discrete", (5,), (0,), (), (), scalar=True)


def role(name: str, agents: int, features: int = 3, head: Head = FIVE) -> PolicyRole:
    return PolicyRole(name, agents, features, head, tuple(f"{name}_{i}" for i in range(agents)))


CATS, MOUSE = role("cat", 3), role("mouse", 2)


# --- policy_rows ---


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ({}, {"cat": {"cat": (0, 1, 2)}, "mouse": {"mouse": (0, 1)}}),
        ({"cat": "a"}, {"a": {"cat": (0, 1, 2)}, "mouse": {"mouse": (0, 1)}}),
        ({"cat": "a", "mouse": "a"}, {"a": {"cat": (0, 1, 2), "mouse": (0, 1)}}),
        ({"cat_1": "odd"}, {"cat": {"cat": (0, 2)}, "odd": {"cat": (1,)}, "mouse": {"mouse": (0, 1)}}),
        ({"cat": "a", "cat_2": "mouse"}, {"a": {"cat": (0, 1)}, "mouse": {"cat": (2,), "mouse": (0, 1)}}),
        (
            {"cat": "random", "mouse_0": "random"},
            {"random (cat)": {"cat": (0, 1, 2)}, "random (mouse)": {"mouse": (0,)}, "mouse": {"mouse": (1,)}},
        ),
        ({"mouse": "frozen:x:y"}, {"cat": {"cat": (0, 1, 2)}, "frozen:x:y (mouse)": {"mouse": (0, 1)}}),
    ],
    ids=str,
)
def test_assignment_of_policies(policies: Mapping[str, str], expected: Mapping[str, Any]) -> None:
    found = assign((CATS, MOUSE), policies)
    assert {name: {p.role.name: p.members for p in parts} for name, parts in found.items()} == expected


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"cats": "a"}, r"Did you mean 'cat'\?"),
        ({"mouse_2": "a"}, "neither a role nor an agent"),
        ({"x": "a"}, "cat"),
        *(
            ({"cat": name}, "policies gives 'cat' the policy .*" + message)
            for name, message in (
                ("Random", r"Did you mean 'random'\?"),
                ("random:x", r"Did you mean 'random'\?"),
                ("frozn", r"Did you mean 'frozen:RUN'\?"),
                ("Frozen:runs/a", r"Did you mean 'frozen:runs/a'\?"),
                ("frozen", "names no run; give frozen:RUN or"),
                ("frozen::cat", "names no run; give frozen:RUN or"),
                ("runs/a:cat", "has no ':' or"),
                ("a (b)", "has no ':' or"),
                ("", "not empty"),
            )
        ),
    ],
)
def test_invalid_policy_names_are_refused(policies: Mapping[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assign((CATS, MOUSE), policies)


def test_a_role_may_be_named_like_random() -> None:
    found = assign((role("ransom", 1), MOUSE), {"ransom": "ransom", "mouse": "frozen:runs/a (copy)"})
    assert list(found) == ["ransom", "frozen:runs/a (copy) (mouse)"]


@pytest.mark.parametrize("policies", [{}, {"cat_1": "odd"}, {"cat": "a", "mouse": "a"}, {"cat_0": "a", "mouse_1": "a"}])
def test_every_agent_gets_the_action_of_its_row(policies: Mapping[str, str], device: str) -> None:
    place, n = resolve_device(device), 4
    code = {r.name: torch.arange(n * r.agents, device=place).view(n, r.agents, 1) for r in (CATS, MOUSE)}
    code["mouse"] = code["mouse"] + 1000
    actions = {name: torch.full_like(tensor, -1) for name, tensor in code.items()}
    for name, parts in assign((CATS, MOUSE), policies).items():
        policy_rows = PolicyRows(name, parts, n, place)
        rows = policy_rows.take(code, 0)
        assert rows.shape == (policy_rows.rows, 1)
        over_time = policy_rows.take({role: torch.stack((t, t + 5)) for role, t in code.items()}, 1)
        assert torch.equal(over_time, torch.stack((rows, rows + 5)))
        policy_rows.put_actions(rows.clone(), actions)
    assert all(torch.equal(actions[name], code[name]) for name in code)


@pytest.mark.parametrize(
    "other",
    [role("dog", 1, features=4), role("dog", 1, head=Head("discrete", (4,), (0,), (), (), scalar=True))],
    ids=("features", "actions"),
)
def test_one_policy_for_different_spaces_is_refused(other: PolicyRole) -> None:
    with pytest.raises(ValueError, match=r"'both' cannot act for both 'cat' and 'dog'.*spaces differ"):
        PolicyRows("both", (RoleMembers(CATS, (0, 1, 2)), RoleMembers(other, (0,))), 2, "cpu")


# --- modules ---


class SeparateNetworks(PolicyModule):
    """A policy with separate networks."""

    def __init__(self, features: int, parameters: int) -> None:
        super().__init__()
        self.actor, self.critic = torch.nn.Linear(features, parameters), torch.nn.Linear(features, 1)
        self.never_used = torch.nn.Parameter(torch.ones(2))

    def distribution(self, observations: Tensor) -> Tensor:
        return self.actor(observations)

    def value(self, observations: Tensor) -> Tensor:
        values: Tensor = self.critic(observations)
        return values.squeeze(-1)


class Wrapped(nn.Module):
    """A module with only a forward method, which may modify another module's outputs."""

    def __init__(self, of: nn.Module, changed: Callable[[Any], Any] = tuple) -> None:
        super().__init__()
        self.of, self.changed = of, changed

    def forward(self, observations: Tensor) -> Any:
        return self.changed(self.of(observations))


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_user_modules_learn(algorithm: str, device: str) -> None:
    """A module learns the same by distribution() and value() as by forward()."""
    learnt = []
    for together in (False, True):
        torch.manual_seed(1)
        module: Any = SeparateNetworks(4, 2)
        first = [p.detach().clone() for p in module.parameters()]
        modules = {"agent": Wrapped(module) if together else module}
        trainer = Trainer(small_run(device, algorithm=algorithm, num_envs=16, **MODULE_SETTINGS), modules=modules)
        trainer.iterate(3)
        after = [p.detach().cpu() for p in module.parameters()]
        moved = [not torch.equal(one, other) for one, other in zip(first, after, strict=True)]
        assert moved == [False, True, True, True, True]  # unused parameters come first, and do not change
        learnt.append(numpy_of(torch.cat([p.ravel() for p in after])))
    # Values come from one product of all rows of a horizon, or from one product per step. Some devices round these
    # differently, and Adam's steps (12 of at most about 0.001) differ by less than a hundredth: gradients
    # are far above its epsilon
    assert np.abs(learnt[0] - learnt[1]).max() < 12 * 1e-3 * 0.01


class Halved(nn.Module):
    """A module that halves its observations, in place or not."""

    def __init__(self, of: nn.Module, *, in_place: bool) -> None:
        super().__init__()
        self.of, self.in_place = of, in_place

    def forward(self, observations: Tensor, *actions: Tensor) -> Any:
        half = observations.mul_(0.5) if self.in_place else observations * 0.5
        return self.of(torch.cat((half, *actions), 1))


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "sac"])
def test_modules_may_change_their_input(algorithm: str, device: str) -> None:
    """They get copies: the storage keeps the environment's observations."""
    learnt = []
    for in_place in (False, True):
        torch.manual_seed(2)
        module: Any = Halved(SeparateNetworks(3, 2), in_place=in_place)
        if algorithm == "sac":
            module = ActorCritic()
            module.actor = Halved(nn.Linear(3, 2), in_place=in_place)
            module.critics = Halved(Wrapped(nn.Linear(4, 2), torch.t), in_place=in_place)
        run = off_policy_run if algorithm == "sac" else small_run
        one_pass = {} if algorithm != "ppo" else {"minibatches": 1}  # of the storage
        trainer = Trainer(
            run(device, "Pendulum-v1", algorithm=algorithm, **one_pass, **MODULE_SETTINGS), modules={"agent": module}
        )
        trainer.iterate(3)
        learnt.append(trainer.state()["learners"])
    assert_same_bits(*learnt)


class OnlyForward(PolicyModule):
    """A PolicyModule without distribution() and value()."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(4, 3)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.both(observations)
        return outputs[:, :2], outputs[:, 2]


def detached(outputs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    return tuple(part.detach() for part in outputs)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: SeparateNetworks(4, 2).double(), "actor.weight of torch.float64; policies are float32: give"),
        (lambda: SeparateNetworks(4, 2).half(), "actor.weight of torch.float16; policies are float32"),
        (lambda: SeparateNetworks(7, 2), "cannot take float32 observations of 4 features"),
        (lambda: SeparateNetworks(4, 2).requires_grad_(False), "nothing to train.*float32.* 4 features"),
        (lambda: Wrapped(SeparateNetworks(4, 2), detached), "depend on none of its learnable parameters"),
        (OnlyForward, "is a training.PolicyModule without distribution"),
        (lambda: nn.LazyLinear(2), "has the lazy parameter weight, which has no shape yet: call the module once"),
        (lambda: SeparateNetworks, "<class '.*SeparateNetworks'>; give an instance of torch.nn.Module"),
        *(
            (lambda of=outputs: Wrapped(nn.Linear(4, 4), of), r"maps observations \[2, 4\] to .*" + message)
            for outputs, message in (
                (lambda x: (x[:, :3], x[:, 0]), r"\(2, 3\) and \(2,\); expected.*\(2, 2\) and the values \(2,\)"),
                (lambda x: (x[:, :2], x[:, :1]), r"\(2, 2\) and \(2, 1\)"),
                (lambda x: (x[:, 0], x[:, :2]), r"\(2,\) and \(2, 2\)"),
                (lambda x: (x[:, :2],), r"\(2, 2\); expected"),
                (lambda x: x[:, :2], "Tensor; expected"),
            )
        ),
    ],
)
def test_modules_that_cannot_learn_are_refused(module: Any, message: str, device: str) -> None:
    made = module()
    if isinstance(made, SeparateNetworks):
        del made.never_used
    with pytest.raises((ValueError, TypeError), match="the policy 'agent' .*" + message):
        Trainer(small_run(device, **MODULE_SETTINGS), modules={"agent": made})


def test_modules_for_unknown_policies_are_refused(device: str) -> None:
    modules: Any = [SeparateNetworks(4, 2)]
    with pytest.raises(TypeError, match=r"modules is a list; give a dict of policy names and torch.nn.Modules"):
        Trainer(small_run(device, **MODULE_SETTINGS), modules=modules)


def test_settings_that_a_module_does_not_use_are_refused(device: str) -> None:
    """Another policy may still have them, by a Policy."""
    message = (
        "hidden, activation and initial_std cannot be set for the policy 'agent', .* leave out hidden, activation and"
    )
    with pytest.raises(ValueError, match=message):
        Trainer(small_run(device, activation="relu", initial_std=0.5), modules={"agent": SeparateNetworks(4, 2)})
    others = {"runner.hidden": (8,), **MODULE_SETTINGS}
    sizes = Trainer(small_run(device, GRID, **others)).learners["tagger"].policy_rows
    module = SeparateNetworks(sizes.features, sizes.head.parameters)
    Trainer(small_run(device, GRID, **others), modules={"tagger": module}).iterate(1)
    module = SeparateNetworks(sizes.features, sizes.head.parameters)
    with pytest.raises(ValueError, match="hidden cannot be set for the policy 'runner', whose module you gave"):
        Trainer(small_run(device, GRID, **others), modules={"runner": module})


def test_policies_that_share_parameters_are_refused(device: str) -> None:
    sizes = Trainer(small_run(device, GRID)).learners["tagger"].policy_rows
    one = SeparateNetworks(sizes.features, sizes.head.parameters)
    other = SeparateNetworks(sizes.features, sizes.head.parameters)
    other.critic = one.critic
    for modules in ({"tagger": one, "runner": one}, {"tagger": Wrapped(one), "runner": other}):
        with pytest.raises(ValueError, match=r"'tagger' and 'runner' share parameters; give both roles one policy"):
            Trainer(small_run(device, GRID, **MODULE_SETTINGS), modules=modules)


def test_a_module_has_one_trainer_at_a_time(tmp_path: Path, device: str) -> None:
    module = SeparateNetworks(4, 2)
    with pytest.raises(ValueError, match="gravty") as kept:  # and with it the incomplete Trainer
        Trainer(small_run(device, params={"gravty": 1}, **MODULE_SETTINGS), modules={"agent": module})
    trainer = Trainer(small_run(device, **MODULE_SETTINGS), modules={"agent": module})
    assert kept.value.args
    trainer.iterate(1)
    for given in (module, Wrapped(module)):
        with pytest.raises(ValueError, match=r"'agent' is being trained by another.*copy.deepcopy"):
            Trainer(small_run(device, **MODULE_SETTINGS), modules={"agent": given})
    copied = copy.deepcopy(module)
    second = Trainer(small_run(device, **MODULE_SETTINGS), modules={"agent": copied})
    before, run = copy.deepcopy(module.state_dict()), str(tmp_path / "run")
    train(
        small_run(device, total_steps=1, run_dir=run, **MODULE_SETTINGS),
        progress=False,
        modules={"agent": copy.deepcopy(module)},
    )
    with pytest.raises(ValueError, match="being trained by another Trainer"):
        evaluate(run, episodes=2, device=device, modules={"agent": module})  # which would load a checkpoint into it
    second.iterate(1)
    assert_same_bits(before, dict(module.state_dict()))
    trainer.iterate(1)  # and the first Trainer still trains its module
    assert not torch.equal(before["actor.weight"], module.state_dict()["actor.weight"])
    del trainer
    third = Trainer(small_run(device, **MODULE_SETTINGS), modules={"agent": module})  # the first Trainer is deleted
    before = copy.deepcopy(module.state_dict())
    third.iterate(1)
    assert not torch.equal(before["actor.weight"], module.state_dict()["actor.weight"])


class ModeDependent(nn.Module):
    """A module that differs between training and evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.of = torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), SeparateNetworks(4, 2)
        self.seen: list[bool] = []

    def forward(self, observations: Tensor) -> Tensor:
        self.seen.append(self.training)
        return self.of(self.drop(self.norm(observations)))


def test_only_learning_changes_buffers(device: str) -> None:
    module = ModeDependent()
    module.norm.eval()
    start = {name: buffer.clone().to(resolve_device(device)) for name, buffer in module.named_buffers()}
    trainer = Trainer(small_run(device, graphs=False, **MODULE_SETTINGS), modules={"agent": module})
    assert_same_bits(start, dict(module.named_buffers()))
    assert (module.training, module.norm.training, module.drop.training) == (True, False, True)
    module.seen.clear()
    found = trainer.evaluate(4)
    assert set(module.seen) == {False}
    assert found == trainer.evaluate(4)
    assert_same_bits(start, dict(module.named_buffers()))
    module.seen.clear()
    trainer.iterate(1)
    # 16 steps and the last values without learning, then two epochs of two minibatches
    assert [seen for seen in module.seen if seen] == [True] * 4
    assert module.seen[-4:] == [True] * 4
    assert module.norm.num_batches_tracked.item() == 4


def test_updates_stopped_by_dropout_warn(tmp_path: Path, device: str) -> None:
    config = small_run(
        device, target_kl=1e-4, log_interval=1, total_steps=8 * 16 * 2, run_dir=str(tmp_path / "run"), **MODULE_SETTINGS
    )
    with pytest.warns(UserWarning, match="'agent' stop before their first step.*Leave target_kl or these layers out"):
        train(config, progress=False, modules={"agent": nn.Sequential(nn.Dropout(0.5), SeparateNetworks(4, 2))})
    log = RunDirectory.open(tmp_path / "run").log()
    for name in ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "gradient_norm"):
        assert np.isnan(log[name]).all()
    assert log["learning_rate"] == [np.float32(1e-3)] * 2  # which does not depend on samples
    assert np.isfinite(log["explained_variance"]).all()


@pytest.mark.parametrize("part", ["actor", "critic"])
def test_parameters_without_gradients_do_not_change(part: str, device: str) -> None:
    module: Any = SeparateNetworks(4, 2)
    getattr(module, part).requires_grad_(False)
    before = copy.deepcopy(module.state_dict())
    Trainer(small_run(device, **MODULE_SETTINGS), modules={"agent": module}).iterate(1)
    for name, tensor in module.state_dict().items():
        same = torch.equal(tensor.cpu(), before[name])
        assert same == (name.startswith(part) or name == "never_used")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu", "gelu"])
def test_first_weights(activation: str, normalised: bool, shared: bool) -> None:
    """Close to a uniform policy, and determined by the seed."""
    box = Head("box", (2,), (), (-1.0, -1.0), (1.0, 1.0), scalar=False)
    for head in (FIVE, box):
        given: dict[str, Any] = {"layer_norm": normalised, "shared_trunk": shared, "initial_std": 0.5}
        network = Network(hidden=(32, 24), activation=activation, **given)
        case = Case(PPO(), network, head, 7, "cpu")
        made = [default_policy(case, torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
        inputs = torch.randn(100, 7, generator=torch.Generator().manual_seed(0))
        (parameters, values), again, other = ([t.detach() for t in module(inputs)] for module in made)
        assert torch.equal(parameters, again[0])
        assert torch.equal(values, again[1])
        assert not torch.equal(values, other[1])
        means = parameters[:, :2] if head is box else parameters
        assert means.abs().max() < 0.3
        if head is box:
            assert_same_bits(parameters[:, 2:], torch.full((100, 2), float(np.log(0.5))))


# --- policies that do not learn ---


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Discrete(5, start=-1),
        gymnasium.spaces.MultiDiscrete([3, 7]),
        gymnasium.spaces.Box(np.array([-2, 0], np.float32), np.array([1, 0.5], np.float32), dtype=np.float32),
    ],
    ids=lambda space: type(space).__name__,
)
def test_random_is_uniform(space: Any, device: str) -> None:
    place, head, n, turns = resolve_device(device), Head.of(space), 4096, 8
    policy_rows = PolicyRows("random (cat)", (RoleMembers(role("cat", 1, head=head), (0,)),), n, place)
    player = Player(policy_rows, None, 1, 0)
    drawn = []
    for turn in range(turns):
        if turn == turns // 2:
            player.advance(turn)
        drawn.append(numpy_of(player.act(turn % (turns // 2), {})))
    assert len({array.tobytes() for array in drawn}) == turns  # different for each turn
    samples = np.concatenate(drawn)
    for element in range(head.width):
        column = samples[:, element]
        if head.kind == "discrete":
            counts = np.bincount(column - head.starts[element], minlength=head.sizes[element])
            assert len(counts) == head.sizes[element]
        else:
            counts = np.histogram(column, 20, (head.low[element], head.high[element]))[0]
            assert counts.sum() == len(column)  # none exceeds the bounds
        expected = len(column) / len(counts)
        chi_square = ((counts - expected) ** 2 / expected).sum()
        degrees = len(counts) - 1
        assert chi_square < degrees + 5 * np.sqrt(2 * degrees)  # five standard deviations from its mean


def test_a_run_without_learning_policies_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="no policy learns"):
        Trainer(small_run(device, policies={"agent": "random"}))


def test_invalid_frozen_policies_are_refused(tmp_path: Path, device: str) -> None:
    """A policy must be named, unless the run has only one."""
    run, one, other, empty = (str(tmp_path / name) for name in ("run", "one", "other", "empty"))
    for folder, runner in ((run, "b"), (one, "a")):
        policies = {"tagger": "a", "runner": runner}
        train(small_run(device, GRID, run_dir=folder, policies=policies, total_steps=1), progress=False)
    train(small_run(device, total_steps=1, run_dir=other), progress=False)
    RunDirectory.create(empty, small_run(device))
    for source, message in (
        (f"{tmp_path / 'nun'}", r"--policy runner=frozen:\S*nun: .*nun does not exist"),
        (f"{run}:c", "has no policy 'c'; it has a, b"),
        (run, r"several policies, a, b, and none is called 'runner'.*runner=frozen:"),
        (other, "does not fit the agents that it should act for"),
        (empty, "no checkpoint yet"),
    ):
        with pytest.raises((FileNotFoundError, CheckpointError), match=message):
            Trainer(small_run(device, GRID, policies={"runner": f"frozen:{source}"}))
    for source in (f"{run}:b", one):
        Trainer(small_run(device, GRID, policies={"runner": f"frozen:{source}"}))


@pytest.mark.parametrize(("env", "normalise"), [(GRID, False), (FIELD, True)])
def test_a_frozen_policy_is_saved_with_the_run_it_acts_in(
    env: str, normalise: bool, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not change while others learn, and is restored from a checkpoint without its source."""
    place = resolve_device(device)
    params: dict[str, Any] = {"params": FIELD_PARAMS | {"actions": "continuous"}} if env == FIELD else {}
    runs: dict[str, Any] = {"total_steps": 8 * 16 * 2, "normalise_observations": normalise, "fused": False, **params}
    runs |= {"runner.hidden": (8,), "run_dir": "source"}
    monkeypatch.chdir(tmp_path)
    train(small_run(device, env, **runs), progress=False)
    trainer = Trainer(small_run(device, env, policies={"runner": "frozen:source"}, **params))
    assert list(trainer.learners) == ["tagger"]
    config, observations = trainer.config, {"runner": trainer.horizon_env.storage["runner"].observations[-1].clone()}
    name = "frozen:source (runner)"
    policy_rows = trainer.players[name].policy_rows
    player = make_player(policy_rows, config)
    player.advance(5)
    expected = player.act(0, observations, greedy=True).clone()
    save(tmp_path / "kept.pt", player.state())
    kept = load(tmp_path / "kept.pt", place)
    assert kept["frozen"]["source"] == f"{tmp_path / 'source'}:runner"
    assert_same_bits(kept["frozen"]["state"]["module"], last_checkpoint("source")["learners"]["runner"]["module"])
    trainer.iterate(1)
    assert torch.equal(trainer.players[name].act(0, observations, greedy=True), expected)

    shutil.rmtree("source")
    train(small_run(device, env, seed=80, **runs), progress=False)  # replaced by another run
    other = make_player(policy_rows, config)
    other.advance(5)
    assert not torch.equal(other.act(0, observations, greedy=True), expected)
    other.load(kept)
    assert torch.equal(other.act(0, observations, greedy=True), expected)

    shutil.rmtree("source")
    train(small_run(device, env, seed=77, activation="relu", **runs), progress=False)
    with pytest.raises(CheckpointError, match="activation is 'relu' and was 'tanh'"):
        make_player(policy_rows, config).load(kept)

    shutil.rmtree("source")
    with pytest.raises(FileNotFoundError, match=r"--policy runner=frozen:source: .*source does not exist"):
        make_player(policy_rows, config)
    again = make_player(policy_rows, config, kept)
    assert again.networks is not None
    again.load(kept)
    assert torch.equal(again.act(0, observations, greedy=True), expected)
    assert_same_bits(again.state()["frozen"]["state"], player.state()["frozen"]["state"])


def test_seeds_of_different_purposes_differ() -> None:
    seeds = [derived_seed(s, purpose, i) for s in range(20) for purpose in ("a", "b") for i in range(20)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    bits = np.array([[seed >> bit & 1 for bit in range(63)] for seed in seeds])
    assert np.abs(bits.mean(0) - 0.5).max() < 5 * 0.5 / np.sqrt(len(seeds))
