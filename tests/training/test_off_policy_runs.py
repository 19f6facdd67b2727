"""Runs that learn from a buffer: how they explore, warm up, go on and are refused."""

import gc
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import assert_same_bits
from trainers import (
    FIELD,
    MODULE_SETTINGS,
    assert_resumes_identically,
    default_run,
    off_policy_run,
    small_run,
    without_times,
)

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gpu_envs.errors import CheckpointError  # noqa: E402
from gpu_envs.training import SAC, ActorCritic, Policy, Run, RunDirectory, Trainer, evaluate, resume, train  # noqa: E402
from gpu_envs.training.engines.base import ActRequest  # noqa: E402
from gpu_envs.training.memory_estimate import memory_of_run  # noqa: E402
from gpu_envs.training.record.run_state import load_run  # noqa: E402
from gpu_envs.training.rollout.plan import Plan  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


# --- exploration ---


def numbers_of(kind: str, device: str, steps: int) -> Any:
    """The numbers of some steps, ``[steps, rows, 1]``; of the first half of the rows an episode ends after step 19."""
    rows = 400
    trainer = Trainer(off_policy_run(device, exploration=kind, num_envs=rows, batch_size=64))
    learner: Any = trainer.learners["agent"]
    ended = torch.arange(rows, device=learner.rate.device) < rows // 2
    found = []
    for t in range(steps):
        found.append(learner.exploration.next(learner.streams["actions"], t).clone())
        if t == 19:
            learner.exploration.restart(ended)
    return torch.stack(found).cpu()


def test_white_numbers_are_normal_and_independent(device: str) -> None:
    found = numbers_of("white", device, 60).flatten()
    assert abs(float(found.mean())) < 4 / len(found) ** 0.5
    assert float(found.std()) == pytest.approx(1.0, abs=0.02)
    assert abs(float((found[400:] * found[:-400]).mean())) < 0.03


def test_a_process_comes_back_and_begins_at_zero(device: str) -> None:
    """The deviation grows from that of one step to 1; neighbours correlate by what stays of a number."""
    found = numbers_of("ou", device, 60)[:, :, 0]
    first = math.sqrt(1 - 0.85**2)
    for t, deviation in ((0, first), (19, math.sqrt(1 - 0.85**40)), (59, 1.0)):
        assert float(found[t, 200:].std()) == pytest.approx(deviation, abs=0.15)
    assert float(found[20, :200].std()) == pytest.approx(first, abs=0.08)  # an episode ended there
    late = found[30:]
    assert float((late[1:] * late[:-1]).mean() / late.square().mean()) == pytest.approx(0.85, abs=0.02)


def test_numbers_begin_anew_where_an_episode_ended(device: str) -> None:
    """Episodes of nine steps: marks are set after the ninth, and taken away by the next numbers."""
    trainer = Trainer(off_policy_run(device, exploration="ou", algorithm="td3", gradient_steps=2, horizon=10))
    learner: Any = trainer.learners["agent"]
    for _ in range(4):
        trainer.iterate(1)
        storage = trainer.horizon_env.storage["agent"]
        assert torch.equal(learner.exploration.state()["new"], storage.truncations[-1].flatten())


@pytest.mark.parametrize("algorithm", ["td3", "ddpg"])
def test_sampled_actions_have_the_noise_of_training(algorithm: str, device: str) -> None:
    trainer = Trainer(off_policy_run(device, algorithm=algorithm, gradient_steps=2, noise=0.25, exploration="ou"))
    learner: Any = trainer.learners["agent"]
    observations = torch.zeros((4000, 3), device=learner.rate.device)
    greedy, sampled = torch.zeros((2, 4000, 1), device=observations.device)
    for actions in (greedy, sampled):
        request = ActRequest(observations, actions, actions[:, 0], learner.streams["actions"], 0)
        request.acted, request.greedy = torch.empty_like(actions), actions is greedy
        learner.networks.act(request)
    assert float((sampled - greedy).std()) == pytest.approx(0.25, abs=0.01)
    assert trainer.evaluate(8) != trainer.evaluate(8, greedy=False)


# --- the warm-up ---


def test_warming_up_is_acting_at_random_without_learning(device: str) -> None:
    trainer = Trainer(
        off_policy_run(device, num_envs=50, horizon=10, learning_starts=1200, buffer_size=100, batch_size=200)
    )
    learner: Any = trainer.learners["agent"]
    before = {name: tensor.clone() for name, tensor in learner.module.state_dict().items()}
    for waits in (3, 2, 1):
        assert learner.warmup_iterations == waits
        trainer.iterate(1)
        assert_same_bits(before, learner.module.state_dict())
        shares = (learner.actions.flatten().cpu() + 1) / 2
        counts = torch.histc(shares, 10, 0.0, 1.0)
        assert float(((counts - 50) ** 2 / 50).sum()) < 30  # chi-square of nine degrees: 21.7 in one of a hundred
        steps = learner.optimisers[0].state()["steps"]
        assert int(steps) == 0
    trainer.iterate(1)
    assert int(learner.optimisers[0].state()["steps"]) == 1
    assert not torch.equal(before["critics.weights.0"], learner.module.state_dict()["critics.weights.0"])


def test_the_actor_learns_with_every_so_many_updates(device: str) -> None:
    trainer = Trainer(off_policy_run(device, algorithm="td3", gradient_steps=6, policy_delay=3))
    trainer.iterate(2)
    learner: Any = trainer.learners["agent"]
    assert [int(each.state()["steps"]) for each in learner.optimisers] == [12, 4]


# --- runs ---


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("Pendulum-v1", {"n_step": 3, "normalise_observations": True, "layer_norm": True}),
        ("Pendulum-v1", {"algorithm": "td3", "gradient_steps": 4, "exploration": "ou"}),
        ("Pendulum-v1", {"algorithm": "ddpg", "activation": "relu"}),
        (FIELD, {"exploration": "ou", "learning_starts": 200, "runner.n_step": 4}),
    ],
)
def test_a_run_goes_on_bit_for_bit(env: str, settings: dict[str, Any], device: str) -> None:
    whole, half, other = (Trainer(off_policy_run(device, env, buffer_size=40, **settings)) for _ in range(3))
    whole.iterate(8)
    half.iterate(4)
    other.load(half.state())
    other.iterate(4)
    assert_same_bits(without_times(whole.state()), without_times(other.state()))


def kept_in(folder: Path, device: str, **settings: Any) -> Run:
    given = {"total_steps": 8 * 16 * 6, "checkpoint_interval": 3, "log_interval": 2, "learning_starts": 300}
    given |= {"keep_checkpoints": 2}
    return off_policy_run(device, run_dir=str(folder), **(given | settings))


def test_it_is_a_run_like_any_other(tmp_path: Path, device: str) -> None:
    result = train(kept_in(tmp_path / "run", device), progress=False)
    assert result.steps == 8 * 16 * 6
    header = (tmp_path / "run" / "log.csv").read_text().splitlines()[0].split(",")
    assert {"policy_loss", "value_loss", "entropy", "temperature"} <= {*header}
    assert not {"kl", "clip_fraction", "explained_variance", "samples", "transitions"} & {*header}
    log = RunDirectory.open(tmp_path / "run").log()  # of three iterations of warm-up, and three that learn
    for name in ("policy_loss", "value_loss", "entropy", "gradient_norm"):
        assert [math.isnan(value) for value in log[name]] == [True, False, False]
    whole = train(kept_in(tmp_path / "whole", device, total_steps=8 * 16 * 9), progress=False)
    assert resume(tmp_path / "run", total_steps=8 * 16 * 9, progress=False).returns == whole.returns
    logs = [(tmp_path / name / "log.csv").read_text().splitlines()[-1].split(",") for name in ("run", "whole")]
    named = [dict(zip(header, log, strict=True)) for log in logs]
    assert named[0]["value_loss"] == named[1]["value_loss"]
    folders = [tmp_path / name / "checkpoints" for name in ("run", "whole")]
    last = "iteration-00000009"
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == [
            f"iteration-0000000{number}.{kind}" for number in (6, 9) for kind in ("buffers-0.zip", "pt")
        ]
    one, other = (folder / f"{last}.buffers-0.zip" for folder in folders)
    assert one.read_bytes() == other.read_bytes()
    found = [evaluate(tmp_path / "run", episodes=20, greedy=greedy, device=device) for greedy in (True, True, False)]
    assert found[0] == found[1] != found[2]
    whole_file = one.read_bytes()
    middle = len(whole_file) // 2
    flipped = whole_file[:middle] + bytes([whole_file[middle] ^ 1]) + whole_file[middle + 1 :]
    of_another = (folders[1] / "iteration-00000006.buffers-0.zip").read_bytes()
    for data, message in (
        (of_another, f"{one.name} belongs to another checkpoint"),
        (whole_file[:middle], "is damaged"),
        (flipped, "Bad CRC-32 for file 'agent/ring'"),
        (None, f"lacks {one.name}, which holds its replay buffer"),
    ):
        one.unlink() if data is None else one.write_bytes(data)
        with pytest.raises(CheckpointError, match=message):
            resume(tmp_path / "run", total_steps=8 * 16 * 10, progress=False)


def rise(act: Callable[[], object]) -> int:
    """By how many bytes the memory of this process rises at most while something runs; see proc(5)."""
    clear, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not clear.exists():
        pytest.skip("only Linux tells of a peak of memory that is over")

    def bytes_of(name: str) -> int:
        return 1024 * next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name))

    clear.write_text("5")
    before = bytes_of("VmRSS")
    act()
    return bytes_of("VmHWM") - before


def test_a_large_buffer_is_saved_and_read_without_copies(tmp_path: Path, device: str) -> None:
    config = off_policy_run(
        device, num_envs=64, buffer_size=80_000, run_dir=str(tmp_path / "run"), total_steps=64 * 16 * 2
    )
    trainer: Any = Trainer(config, RunDirectory.create(config.run_dir, config))
    trainer.iterate(2)
    ring = trainer.learners["agent"].replay.ring
    size = ring.numel() * ring.element_size()
    assert rise(trainer.save) < size / 2
    del trainer, ring
    gc.collect()
    assert rise(lambda: resume(tmp_path / "run", total_steps=64 * 16 * 3, progress=False)) < 1.5 * size


def test_a_checkpoint_without_the_buffer_collects_again(tmp_path: Path, device: str) -> None:
    config = kept_in(tmp_path / "run", device, keep_buffer=False, buffer_size=2000, initial_std=0.05)
    train(config, progress=False)
    (path,) = sorted((tmp_path / "run" / "checkpoints").glob("*.pt"))[-1:]
    assert not list(path.parent.glob("*buffers*"))
    trainer = Trainer(config)
    trainer.load(load_run(path))
    learner: Any = trainer.learners["agent"]
    assert (learner.warmup_iterations, int(learner.replay.position)) == (3, 0)
    before = learner.optimisers[0].flat.clone()
    trainer.iterate(3)
    assert torch.equal(before, learner.optimisers[0].flat)
    outputs = learner.networks.outputs(trainer.horizon_env.storage["agent"].observations[0, :, 0])
    likeliest = torch.tanh(outputs[:, :1])
    assert float((learner.actions[0] - likeliest).abs().max()) < 0.3  # by the policy, not evenly
    trainer.iterate(1)
    assert not torch.equal(before, learner.optimisers[0].flat)


def test_roles_may_learn_by_algorithms_of_their_own(device: str) -> None:
    own = SAC(learning_starts=200, batch_size=64, gradient_steps=1, buffer_size=40)
    config = small_run(
        device, FIELD, params=off_policy_run(device, FIELD).params, policies={"runner": Policy(own)}, clip=0.1
    )
    trainer = Trainer(config)
    (report,) = trainer.iterate(1)
    assert "kl" in report.learner_metrics["tagger"]
    assert "temperature" in report.learner_metrics["runner"]
    trainer.iterate(3)


class Mine(ActorCritic):
    """An actor and critics of the user's own."""

    def __init__(self, outputs: int = 2, critics: int = 2) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, outputs))
        self.critics = MyCritics(critics)


class MyCritics(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.each = nn.ModuleList(nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 1)) for _ in range(count))

    def forward(self, observations: Any, actions: Any) -> Any:
        rows = torch.cat((observations, actions), 1)
        return torch.stack([each(rows).squeeze(1) for each in self.each])


def test_a_module_of_the_users_own(device: str) -> None:
    trainer = Trainer(off_policy_run(device, exploration="ou", **MODULE_SETTINGS), modules={"agent": Mine()})
    before = trainer.learners["agent"].module.state_dict()["critics.each.1.0.weight"].clone()
    trainer.iterate(3)
    assert not torch.equal(before, trainer.learners["agent"].module.state_dict()["critics.each.1.0.weight"])
    for module, message in (
        (Mine(1), r"the actor of the policy 'agent' maps observations \[2, 3\] to \(2, 1\); expected \(2, 2\)"),
        (Mine(2, 1), r"the critics .* map observations \[2, 3\] and actions \[2, 1\] to \(1, 2\); expected \(2, 2\)"),
        (nn.Linear(3, 2), "give a module with an actor and critics, such as a training.ActorCritic"),
    ):
        with pytest.raises(ValueError, match=message):
            Trainer(off_policy_run(device, **MODULE_SETTINGS), modules={"agent": module})


class Encoded(nn.Module):
    """An encoder, registered or not, and a module that is given what it says."""

    def __init__(self, encoder: nn.Module, of: nn.Module, *, registered: bool) -> None:
        super().__init__()
        self.of, self.encoder = of, [encoder]
        if registered:
            self.registered = encoder

    def forward(self, observations: Any, *actions: Any) -> Any:
        return self.of(torch.tanh(self.encoder[0](observations)), *actions)


class Shared(ActorCritic):
    """An actor and critics with one encoder, which is registered in some of them, or beside them."""

    def __init__(self, outputs: int, *registered: str, critics_use_it: bool = True) -> None:
        super().__init__()
        encoder = nn.Linear(3, 3)
        if "beside" in registered:
            self.encoder = encoder
        self.actor = Encoded(encoder, nn.Linear(3, outputs), registered="actor" in registered)
        of_critics = encoder if critics_use_it else nn.Identity()
        self.critics = Encoded(of_critics, MyCritics(2), registered="critics" in registered)


@pytest.mark.parametrize("registered", [("actor", "critics"), ("critics",), ("beside",)])
@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_an_encoder_of_actor_and_critics_learns_once(algorithm: str, registered: Any, device: str) -> None:
    """It learns by the critics' loss, and target networks, which here follow at once, are those that are used."""
    outputs = 2 if algorithm == "sac" else 1
    module = Shared(outputs, *registered)
    trainer = Trainer(
        off_policy_run(device, algorithm=algorithm, gradient_steps=2, tau=1.0, **MODULE_SETTINGS),
        modules={"agent": module},
    )
    learner: Any = trainer.learners["agent"]
    assert [each.flat.numel() for each in learner.optimisers[:2]] == [3 * 4 + 2 * (20 * 5 + 21), outputs * 4]
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    trainer.iterate(2)
    targets = dict(learner.networks.targets.named_parameters())
    for name, parameter in module.named_parameters():
        assert not torch.equal(parameter, before[name])
        if algorithm == "td3" or not name.startswith("actor.of"):  # SAC has no target actor
            assert torch.equal(targets[name], parameter)


@pytest.mark.parametrize(
    ("registered", "use", "message"),
    [
        (("actor",), True, "the critics of the policy 'agent' use its parameter actor.registered.weight, which is"),
        (("beside",), False, "the critics of the policy 'agent' do not use its parameter encoder.weight, which the"),
    ],
)
def test_parameters_that_their_loss_does_not_reach_are_refused(
    registered: Any, use: bool, message: str, device: str
) -> None:
    module = Shared(2, *registered, critics_use_it=use)
    with pytest.raises(ValueError, match=message):
        Trainer(off_policy_run(device, **MODULE_SETTINGS), modules={"agent": module})
    if not use:
        module.encoder.requires_grad_(False)
        Trainer(off_policy_run(device, **MODULE_SETTINGS), modules={"agent": module}).iterate(1)


def test_an_actor_has_parameters_of_its_own(device: str) -> None:
    module = Mine()
    module.critics.actor = module.actor
    with pytest.raises(ValueError, match="the actor of the policy 'agent' shares all its parameters with the critics"):
        Trainer(off_policy_run(device, **MODULE_SETTINGS), modules={"agent": module})


# --- what is refused ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"buffer_size": 16}, "buffer_size is 16, horizon is 16 and n_step is 1: give a"),
        ({"n_step": 300}, "horizon is 16 and n_step is 300: give a buffer_size above both"),
        (
            {"learning_starts": 12_800},
            "learning_starts is 12,800, for which .* 'agent' needs 100 .* ends after 100, .* above 12,800, or",
        ),
        ({"env": "CartPole-v1", "learning_starts": 12_800}, "sac supports Box actions"),
        (
            {"learning_starts": 129, "total_steps": 8 * 16 * 2},  # two iterations, and nothing is learnt in either
            "learning_starts is 129, for which .* 'agent' needs 2 .* 128 steps, .* ends after 2, .* above 256, or",
        ),
        (
            {"algorithm": "td3", "gradient_steps": 3},
            "gradient_steps is 3 and policy_delay is 2: give a multiple of policy_delay",
        ),
        ({"clip": 0.1}, "sac has no clip, which is a setting of ppo"),
        ({"gae_lambda": 0.9}, "sac has no gae_lambda"),
        ({"noise": 0.2}, "sac has no noise, which is a setting of td3 and ddpg"),
        ({"algorithm": "ddpg", "target_noise": 0.3}, "ddpg has no target_noise, which is a setting of td3"),
        ({"algorithm": "ddpg", "temperature": 0.3}, "ddpg has no temperature"),
        ({"tau": 0.0}, "tau is 0.0; give a number above 0 to 1"),
        ({"exploration": "pink"}, "exploration is 'pink'"),
        (
            {"env": "CartPole-v1"},
            "sac supports Box actions, and the policy 'agent' has discrete actions; give",
        ),
        (
            {"batch_size": 2000},
            "batch_size is 2,000, .* policy 'agent' .*: lower batch_size to 1,592, or raise buffer_size .* to 251",
        ),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    given = dict(settings)
    with pytest.raises(ValueError, match=message):
        memory_of_run(Plan(off_policy_run("cpu", given.pop("env", "Pendulum-v1"), **given), "cpu", 8))


def test_too_large_a_buffer_is_refused_with_what_fits() -> None:
    config = off_policy_run("cpu", num_envs=1024, buffer_size=10**8)
    with pytest.raises(MemoryError, match=r"lower buffer_size to ([\d,]+), which fits") as caught:
        Trainer(config)
    fitting = int(str(caught.value).split("lower buffer_size to ")[1].split(", which")[0].replace(",", ""))
    assert 1000 < fitting < 10**8
    long_returns = off_policy_run(
        "cpu", num_envs=1024, buffer_size=10**8, n_step=10**8 - 1
    )  # for which that is too small
    with pytest.raises(MemoryError, match=r"free: lower (num_envs|the horizon)"):
        Trainer(long_returns)


# --- learning ---


@pytest.mark.slow
def test_pendulum_is_swung_up(device: str) -> None:
    """From -1,200 at random to what it takes to hold it up for most of 200 steps."""
    config = default_run(
        "Pendulum-v1",
        device,
        algorithm="sac",
        num_envs=16,
        horizon=8,
        gradient_steps=48,
        batch_size=128,
        buffer_size=1000,
        learning_starts=1024,
        total_steps=12_000,
        learning_rate=0.002,
        gamma=0.95,
        tau=0.02,
        activation="relu",
        hidden=(48, 48),
        max_grad_norm=None,
        seed=1,
    )
    trainer = Trainer(config)
    trainer.run(progress=False)
    assert trainer.evaluate(100)["agent"].mean > -250


def test_a_frozen_actor_plays(tmp_path: Path, device: str) -> None:
    train(off_policy_run(device, FIELD, run_dir=str(tmp_path / "run"), total_steps=8 * 16 * 2), progress=False)
    frozen = {"runner": f"frozen:{tmp_path / 'run'}"}
    config = off_policy_run(device, FIELD, algorithm="td3", gradient_steps=2, policies=frozen)
    assert_resumes_identically(config)
