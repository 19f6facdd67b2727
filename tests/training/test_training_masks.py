"""Action masks in training: what they forbid is never drawn, has no probability and gets no gradient."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import assert_same_bits, forgotten, numpy_of
from masked_envs import CHOICES, LENGTH, PICTURED, registered
from small_envs import walk
from trainers import small, timeless

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import gpu_envs  # noqa: E402
from gpu_envs.backend import resolve_device  # noqa: E402
from gpu_envs.engine.random_actions import drawn_among  # noqa: E402
from gpu_envs.registry import known as registry  # noqa: E402
from gpu_envs.replays import record  # noqa: E402
from gpu_envs.training import Trainer, evaluate, resume, train  # noqa: E402
from gpu_envs.training.operations.heads import Head  # noqa: E402
from gpu_envs.training.operations.ops import LossSettings, Ops, Samples  # noqa: E402
from gpu_envs.training.operations.optimiser import Adam  # noqa: E402
from gpu_envs.training.policies.networks import TOTALS  # noqa: E402
from gpu_envs.training.policies.torch_networks import TorchPolicy  # noqa: E402
from gpu_envs.training.record import checkpoint  # noqa: E402
from gpu_envs.training.rollout.features import Flattening  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

Tensor = Any

HEADS = {
    "discrete": Head.of(gymnasium.spaces.Discrete(6, start=-2)),
    "alike": Head.of(gymnasium.spaces.MultiDiscrete([4, 4, 4])),
    "multidiscrete": Head.of(gymnasium.spaces.MultiDiscrete([5, 2, 9], start=[1, 0, -3])),
    "many": Head.of(gymnasium.spaces.MultiDiscrete([7] * 12 + [2] * 9)),  # a GPU's warp has a row
    "more": Head.of(
        gymnasium.spaces.MultiDiscrete([5] * 40 + [2] * 11, start=[1] * 51)
    ),  # its threads several elements
    "wide": Head.of(gymnasium.spaces.MultiDiscrete([3, 95, 130])),  # rows stay where they are
}
SETTINGS = {"ppo": LossSettings(), "a2c": LossSettings(clipped=False)}
SCALARS = (0.3, 1.7, 0.05, 0.2)
"""The advantages' mean, one over their deviation, the entropy's weight, the clip range."""


@pytest.fixture(scope="module", autouse=True)
def environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The small environments are known while these tests run."""
    with registered(tmp_path_factory.mktemp("headers")):
        yield


# --- distributions ---


def some_masks(head: Head, rows: int, generator: Any, place: str) -> Tensor:
    """Masks of which some leave an element nothing at all."""
    mask = (torch.rand(rows, head.parameters, generator=generator) < 0.4).to(torch.int8)
    mask[rows // 2] = 0
    return mask.to(place)


def of_distribution(head: Head, parameters: Tensor, mask: Tensor) -> list[Any]:
    """torch's distributions, with -inf where a choice is forbidden; where all of them are, they are alike."""
    parts = torch.where(mask.cpu() != 0, parameters, -math.inf).split(head.sizes, 1)
    alike = [torch.where(part.isneginf().all(1, keepdim=True), 0.0, part) for part in parts]
    return [torch.distributions.Categorical(logits=part) for part in alike]


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("name", HEADS)
def test_forbidden_choices_are_never_drawn(name: str, device: str) -> None:
    """Frequencies and log-probabilities of one distribution, drawn many times."""
    head, place, rows = HEADS[name], resolve_device(device), 20_000
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(1, head.parameters, generator=generator)
    mask = torch.ones(1, head.parameters, dtype=torch.int8)
    mask[0, [0, head.parameters - 1, head.parameters // 2]] = 0
    actions = torch.zeros(rows, head.width, dtype=torch.int32, device=place)
    log_probs, entropies = torch.zeros(rows, device=place), torch.zeros(rows, device=place)
    wide, masks = (one.expand(rows, -1).contiguous().to(place) for one in (logits, mask))
    stream = torch.tensor([7, 0], device=place)
    Ops(head, device, 1).sample(wide, actions, log_probs, stream=stream, turn=0, entropies=entropies, action_mask=masks)
    chosen = actions.cpu().long() - torch.tensor(head.starts)
    parts = of_distribution(head, logits, mask)
    expected = torch.stack([part.log_prob(chosen[:, d]) for d, part in enumerate(parts)]).sum(0)
    assert torch.isfinite(expected).all()  # of what is forbidden it would be -inf
    torch.testing.assert_close(log_probs.cpu(), expected, rtol=1e-5, atol=1e-5)
    entropy = sum(torch.nan_to_num(-part.probs * part.probs.log()).sum() for part in parts)
    torch.testing.assert_close(entropies.cpu(), torch.full((rows,), float(entropy)), rtol=1e-5, atol=1e-5)
    for d, part in enumerate(parts):
        share = torch.bincount(chosen[:, d], minlength=head.sizes[d]) / rows
        assert (share - part.probs[0]).abs().max() < 5 * math.sqrt(0.25 / rows)


@dataclasses.dataclass
class Case:
    """A small network, observations, masks, and what was done under another network."""

    networks: TorchPolicy
    optimiser: Adam
    observations: Tensor
    batch: Samples


def case(name: str, place: str, samples: int = 400, features: int = 3) -> Case:
    head, generator = HEADS[name], torch.Generator().manual_seed(samples)
    mask = some_masks(head, samples, generator, "cpu")
    old = of_distribution(head, torch.randn(samples, head.parameters, generator=generator), mask)
    chosen = [torch.multinomial(part.probs, 1, generator=generator)[:, 0] for part in old]
    log_probs = torch.stack([part.log_prob(c) for part, c in zip(old, chosen, strict=True)]).sum(0)
    actions = torch.stack([c + start for c, start in zip(chosen, head.starts, strict=True)], 1).to(torch.int32)
    others = [torch.randn(samples, generator=generator) for _ in range(3)]
    module = Linear(features, head)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    observations = torch.randn(samples, features, generator=generator)
    module.to(place)
    optimiser = Adam(list(module.parameters()), device=place, threads=1)
    networks = TorchPolicy(module, head, Ops(head, place, 1), optimiser, None, "float32", place)
    given = (actions, log_probs, *others, mask)
    names = ("actions", "log_probs", "advantages", "returns", "values", "action_mask")
    batch = Samples(**{n: tensor.to(place) for n, tensor in zip(names, given, strict=True)})
    return Case(networks, optimiser, observations.to(place), batch)


class Linear(nn.Module):
    """A layer each for logits and value."""

    def __init__(self, features: int, head: Head) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(features, head.parameters), nn.Linear(features, 1)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(observations), self.critic(observations)[:, 0]


@pytest.mark.parametrize("minibatch", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", HEADS)
def test_the_gradient_of_masked_distributions(name: str, settings: str, minibatch: bool, device: str) -> None:
    """Against torch's distributions with -inf, in float64; indices repeat and are in no order."""
    place, head = resolve_device(device), HEADS[name]
    given = case(name, place)
    count = len(given.observations)
    indices = torch.randint(0, count, (150,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    totals = torch.zeros(TOTALS, device=place)
    given.networks.gradient(
        given.observations, given.batch, indices.to(place) if minibatch else None, SETTINGS[settings],
        torch.tensor(SCALARS, device=place), totals,
    )  # fmt: skip
    found = given.optimiser.gradient.cpu()

    chosen = indices.long() if minibatch else torch.arange(count)
    module = Linear(3, head).double()
    module.load_state_dict({key: value.cpu().double() for key, value in given.networks.module.state_dict().items()})
    batch = {f.name: getattr(given.batch, f.name) for f in dataclasses.fields(Samples)}
    own = {key: value.cpu()[chosen] for key, value in batch.items() if value is not None}
    logits, values = module(given.observations.cpu()[chosen].double())
    log_prob, entropy = torch.zeros(len(chosen)).double(), torch.zeros(len(chosen)).double()
    for d, part in enumerate(of_distribution(head, logits, own["action_mask"])):
        log_prob = log_prob + part.log_prob(own["actions"][:, d].long() - head.starts[d])
        shares = part.probs.clamp(min=1e-300)
        entropy = entropy - (part.probs * shares.log()).sum(1)
    mean, inverse, weight, clip = SCALARS
    advantage = (own["advantages"].double() - mean) * inverse
    ratio = (log_prob - own["log_probs"].double()).exp()
    ppo = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip))
    policy = ppo if settings == "ppo" else -advantage * log_prob
    value = 0.5 * (values - own["returns"].double()).square()
    (policy + 0.5 * value - weight * entropy).sum().backward()
    gradients: list[Tensor] = [parameter.grad for parameter in module.parameters()]
    expected = torch.cat([gradient.flatten() for gradient in gradients])
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert torch.isfinite(totals).all()
    torch.testing.assert_close(float(totals[2]), entropy.sum().item(), rtol=1e-5, atol=1e-5)


def test_no_gradient_reaches_what_is_forbidden(device: str) -> None:
    given = case("discrete", resolve_device(device))
    mask = torch.ones_like(given.batch.action_mask)
    mask[:, 2] = 0
    actions = given.batch.actions.clamp(max=-1)  # the choices before the forbidden one, which is called 0
    batch = dataclasses.replace(given.batch, action_mask=mask, actions=actions)
    scalars = torch.tensor(SCALARS, device=mask.device)
    given.networks.gradient(
        given.observations, batch, None, SETTINGS["ppo"], scalars, torch.zeros(TOTALS, device=mask.device)
    )
    features, choices = 3, 6
    weight, bias = torch.split(given.optimiser.gradient[: (features + 1) * choices], (features * choices, choices))
    assert not weight.view(choices, features)[2].any()
    assert bias[2] == 0
    assert weight.view(choices, features)[[0, 1, 3, 4, 5]].all()


@pytest.mark.parametrize("name", HEADS)
def test_a_mask_that_forbids_nothing_changes_no_bit(name: str, device: str) -> None:
    found = []
    for everything in (None, torch.ones(400, HEADS[name].parameters, dtype=torch.int8, device=resolve_device(device))):
        given = case(name, resolve_device(device))
        place = given.observations.device
        batch = dataclasses.replace(given.batch, action_mask=everything)
        totals = torch.zeros(TOTALS, device=place)
        given.networks.gradient(
            given.observations, batch, None, SETTINGS["ppo"], torch.tensor(SCALARS, device=place), totals
        )
        actions, log_probs = torch.zeros_like(batch.actions), torch.zeros_like(batch.log_probs)
        given.networks.act(
            given.observations, actions, log_probs, None, None, torch.tensor([1, 2], device=place), 0,
            greedy=False, action_mask=everything,
        )  # fmt: skip
        found.append({"gradient": given.optimiser.gradient, "totals": totals, "actions": actions, "log": log_probs})
    assert_same_bits(found[0], found[1])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_random_samples_among_the_possible(library: str) -> None:
    numbers = np.random.default_rng(0)

    def drawn_of(space: Any, mask: np.ndarray, elements: int) -> np.ndarray:
        units = numbers.random((*mask.shape[:-1], elements))
        if library == "numpy":
            return np.asarray(drawn_among(space, mask, units))
        return np.asarray(drawn_among(space, torch.as_tensor(mask.copy()), torch.as_tensor(units)).numpy())

    space = gymnasium.spaces.MultiDiscrete([3, 2], start=[2, 0])
    mask = np.array([[1, 0, 1, 0, 0], [0, 1, 0, 0, 1]], np.int8)
    drawn = drawn_of(space, np.broadcast_to(mask, (6000, 2, 5)), 2)
    assert drawn.shape == (6000, 2, 2)
    assert drawn.dtype == np.int64
    assert np.isin(drawn[:, 0, 0], (2, 4)).all()
    assert (drawn[:, 1] == (3, 1)).all()
    for share in ((drawn[:, 0, 0] == 2).mean(), (drawn[:, 0, 1] == 1).mean()):  # of the second element all is possible
        assert abs(share - 0.5) < 5 * math.sqrt(0.25 / 6000)
    alone = drawn_of(gymnasium.spaces.Discrete(3, start=-1), np.array([[0, 0, 1], [0, 1, 0]]), 1)
    assert alone.tolist() == [1, 0]
    nothing = drawn_of(gymnasium.spaces.Discrete(3), np.zeros((6000, 3), np.int8), 1)
    for choice in range(3):
        assert abs((nothing == choice).mean() - 1 / 3) < 5 * math.sqrt(2 / 9 / 6000)


# --- training ---


def corridor(device: str, env: str = "MaskedCorridor-v0", **settings: Any) -> Any:
    return small(device, env, **({"num_envs": 16, "learning_rate": 0.01} | settings))


def forbidden_in(trainer: Trainer) -> int:
    """How often something forbidden was done in the last horizon: rewards below zero say so."""
    return sum(int((storage.rewards < 0).sum()) for storage in trainer.horizon_env.storage.values())


RUNS: Mapping[str, Mapping[str, Any]] = {
    "ppo": {"normalise_observations": True, "normalise_rewards": True, "entropy_weight": 0.01, "stagger": True},
    "a2c": {"algorithm": "a2c", "entropy_weight": 0.01},
    "one trunk": {"shared_trunk": True, "precision": "bf16"},
    "stopped early": {"target_kl": 0.01, "value_clip": 0.2},
    "image": {"env": "PicturedCorridor-v0", "normalise_observations": True},
    "bytes": {"env": "BytesCorridor-v0"},
    "square": {"env": "SquareCorridor-v0", "horizon": 50},  # longer than the limit of episodes
    "team": {"env": "MaskedTeam-v0"},
    "one policy for some": {"env": "MaskedTeam-v0", "policies": {"walker_1": "hiker"}, "shared_trunk": True},
    "random others": {"env": "MaskedTeam-v0", "policies": {"walker_0": "random", "hiker": "random"}},
}


@pytest.mark.parametrize("name", RUNS)
def test_what_is_forbidden_is_never_done(name: str, device: str) -> None:
    trainer = Trainer(corridor(device, **RUNS[name]))
    for _ in range(4):
        trainer.iterate(1)
        assert forbidden_in(trainer) == 0
    for learner in trainer.learners.values():
        assert torch.isfinite(learner.figures[:6]).all()
        assert learner.figures[5] > 0
    for greedy in (True, False):
        results = trainer.evaluate(8, greedy=greedy)
        assert all(result.mean >= 0 for result in results.values())


def test_without_masks_it_is_done() -> None:
    """Otherwise the counts above would mean nothing."""
    trainer = Trainer(corridor("cpu", "BareCorridor-v0"))
    trainer.iterate(1)
    assert forbidden_in(trainer) > 50


@pytest.mark.parametrize("name", RUNS)
def test_a_run_with_masks_goes_on(name: str, tmp_path: Path, device: str) -> None:
    config = corridor(device, **RUNS[name])
    whole = Trainer(config)
    whole.iterate(2)
    checkpoint.save(tmp_path / "middle.pt", whole.state())
    whole.iterate(2)
    other = Trainer(config)
    other.load(checkpoint.load(tmp_path / "middle.pt", other.device))
    other.iterate(2)
    assert_same_bits(timeless(whole.state()), timeless(other.state()), "state")


def test_masks_make_learning_quicker(device: str) -> None:
    """Two choices in a place where there are six, of which four end the walk."""
    reached = {}
    for env in ("MaskedCorridor-v0", "BareCorridor-v0"):
        trainer = Trainer(corridor(device, env, horizon=32, epochs=4))
        trainer.iterate(12)
        reached[env] = trainer.evaluate(64, greedy=False)["agent"].mean
    assert reached["MaskedCorridor-v0"] > 0.95
    assert reached["BareCorridor-v0"] < 0.5


def test_images_and_numbers_are_learnt_from(device: str) -> None:
    trainer = Trainer(corridor(device, "PicturedCorridor-v0", horizon=32, epochs=4))
    before = trainer.evaluate(64)["agent"].length
    trainer.iterate(15)
    after = trainer.evaluate(64)["agent"]
    assert after.mean == 1
    assert after.length < min(before, LENGTH + 1)


def test_a_mask_that_forbids_nothing_trains_the_same_run(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit that of the environment without masks, under networks that torch runs."""
    open_spec = dataclasses.replace(
        registry.env_spec("BareCorridor-v0"), id="OpenCorridor-v0", action_mask=True, header=_open_header(),
    )  # fmt: skip
    monkeypatch.setitem(registry.SPECS, open_spec.id, open_spec)
    found = []
    for env in ("BareCorridor-v0", "OpenCorridor-v0"):
        trainer = Trainer(corridor(device, env, fused=False))
        trainer.iterate(3)
        found.append(timeless(trainer.state())["learners"])
    assert_same_bits(found[0], found[1])


def _open_header() -> Path:
    """The corridor, with rules that forbid nothing."""
    path = Path(str(registry.env_spec("BareCorridor-v0").header))
    text = path.read_text()
    first, last = text.index("FN void allow"), text.index("FN void observe")
    made = path.with_name("open.cuh")
    made.write_text(text[:first] + "FN void allow(const State& s, const Params& p, Mask& mask) {}\n\n" + text[last:])
    return made


def test_masks_of_the_state_that_is_observed(device: str) -> None:
    """Rows of the storage, against the rules in plain Python, over ends of episodes and of horizons."""
    trainer = Trainer(corridor(device))
    for _ in range(3):
        trainer.iterate(1)
        storage = trainer.horizon_env.storage["agent"]
        place = numpy_of(storage.observations).argmax(-1)[..., None]
        choice = np.arange(CHOICES)
        expected = (choice == (place * 5 + 2) % CHOICES) | (choice == (place * 5 + 4) % CHOICES)
        assert (numpy_of(storage.action_mask) == expected).all()


def test_kernels_of_small_networks_know_no_masks(device: str) -> None:
    reason = "the device is cpu" if device == "cpu" else "the environment has action masks"
    with pytest.raises(ValueError, match=f"fused=True, and {reason}"):
        Trainer(corridor(device, fused=True))
    assert isinstance(Trainer(corridor(device, hidden=(64, 64))).learners["agent"].networks, TorchPolicy)


# --- observations of other forms ---


def test_the_row_of_a_dict() -> None:
    """Keys in the space's own order, bytes from 0 to 1, whole numbers as they are."""
    way = Flattening.of(PICTURED)
    given = {
        "near": torch.tensor([[0.5], [0.25]]),
        "image": torch.arange(54, dtype=torch.uint8).view(2, 3, 3, 3),
        "counts": torch.tensor([[3, -70], [5, 2**20]], dtype=torch.int32),
    }
    parts = {
        "near": given["near"],
        "image": given["image"].flatten(1).float() * (1 / 255),
        "counts": given["counts"].float(),
    }
    expected = torch.cat([parts[key] for key in PICTURED.spaces], 1)
    assert way.features == 30
    assert torch.equal(way.rows(given, 1), expected)
    rows = torch.full((2, 30), math.nan)
    way.write(given, rows)
    assert torch.equal(rows, expected)


def test_flat_rows_cost_nothing(device: str) -> None:
    for env in ("CartPole-v1", "TagGridWorld-v0"):
        roles = Trainer(small(device, env)).horizon_env.roles
        assert all(role.flattening is None and not role.masked for role in roles)
    square = Flattening.of(gymnasium.spaces.Box(0, 1, (3, 3), np.float32))
    assert (square.features, square.pieces) == (9, ())
    given = torch.arange(18.0).view(2, 3, 3)
    assert square.rows(given, 1).data_ptr() == given.data_ptr()


@pytest.mark.parametrize(
    "space",
    [gymnasium.spaces.Discrete(3), gymnasium.spaces.Dict({"a": gymnasium.spaces.MultiBinary(3)}),
     gymnasium.spaces.Box(0, 1, (2,), np.float64)],
)  # fmt: skip
def test_what_cannot_be_flattened(space: gymnasium.Space[Any]) -> None:
    with pytest.raises(ValueError, match="cannot be learnt from; give a Box"):
        Flattening.of(space)


@pytest.mark.parametrize("env", ["PicturedCorridor-v0", "BytesCorridor-v0", "SquareCorridor-v0"])
def test_rows_of_a_horizon_are_those_of_the_environment(env: str, device: str) -> None:
    """Step by step beside an environment of the same seed: observations, final ones, rewards and ends."""
    trainer = Trainer(corridor(device, env, seed=5))
    horizon_env = trainer.horizon_env
    storage: Any = horizon_env.storage["agent"]
    way = Flattening.of(horizon_env.env.single_observation_space)
    other = gpu_envs.make(env, 16, device=device, output="torch", autoreset_mode="SameStep")
    observations, _ = other.reset(seed=9)
    horizon_env.reset(9)
    storage.carry_over()
    ends = 0
    numbers = np.random.default_rng(0)
    for t in range(horizon_env.horizon):
        assert torch.equal(storage.observations[t, :, 0], way.rows(observations, 1))
        assert torch.equal(storage.action_mask[t, :, 0], other.action_mask)
        actions = torch.as_tensor(numbers.integers(0, CHOICES, 16), device=horizon_env.device)
        observations, rewards, terminations, truncations, infos = other.step(actions)
        horizon_env.step(t, {"agent": actions.view(16, 1, 1)})
        assert torch.equal(storage.rewards[t, :, 0], rewards)
        over = terminations | truncations
        ends += int(over.sum())
        assert torch.equal(storage.final_obs[t, :, 0][over], way.rows(infos["final_obs"], 1)[over])
    assert torch.equal(storage.observations[-1, :, 0], way.rows(observations, 1))
    assert ends > 20


# --- runs and replays ---


@pytest.mark.parametrize("env", ["MaskedCorridor-v0", "PicturedCorridor-v0", "MaskedTeam-v0"])
def test_runs_are_kept_evaluated_and_replayed(env: str, tmp_path: Path, device: str) -> None:
    run = tmp_path / "run"
    config = corridor(device, env, run_dir=str(run), total_steps=16 * 16 * 3, checkpoint_interval=1)
    train(config, progress=False)
    resume(run, total_steps=16 * 16 * 5, progress=False)
    roles = gpu_envs.make(env).roles if env == "MaskedTeam-v0" else ("agent",)
    for policies in ({}, dict.fromkeys(roles, "random"), dict.fromkeys(roles, f"frozen:{run}")):
        results = evaluate(run, episodes=20, greedy=False, device=device, policies=policies)
        assert all(result.mean >= 0 for result in results.values())
        replay = record(run, replicas=4, steps=30, greedy=False, device=device, policies=policies)
        assert replay.state["forbidden"].max() == 0
        assert (replay.state["place"] > 0).any()
    replay.save_html(tmp_path / "page.html")


@pytest.mark.parametrize("env", ["MaskedCorridor-v0", "BytesCorridor-v0", "PicturedCorridor-v0", "MaskedTeam-v0"])
def test_random_actions_in_replays(env: str, device: str) -> None:
    replay = record(env, replicas=6, steps=60, device=device)
    assert replay.state["forbidden"].max() == 0
    assert replay.ends.any()
    assert_same_bits(replay.state, record(env, replicas=6, steps=60, device=device).state)
    own = gpu_envs.make(env, 3, device=device, output="torch", autoreset_mode="SameStep")
    assert record(own, steps=40, seed=1).state["forbidden"].max() == 0


def test_a_function_of_the_users_sees_observations_as_they_are(device: str) -> None:
    env = gpu_envs.make("PicturedCorridor-v0", 4, device=device)
    seen = []

    def onward(observations: Mapping[str, np.ndarray]) -> np.ndarray:
        seen.append({key: value.shape for key, value in observations.items()})
        chosen: np.ndarray = (observations["counts"][:, 0] * 5 + 2) % CHOICES
        return chosen

    replay = record(env, policy=onward, episodes=1, seed=0)
    assert seen[0] == {"counts": (4, 2), "image": (4, 3, 3, 3), "near": (4, 1)}
    assert (replay.returns()["agent"] == 1).all()
    assert set(replay.last) <= {LENGTH - 1, LENGTH}


SINGLE: Any = {
    "bytes": gymnasium.spaces.Box(0, 255, (), np.uint8),
    "float": gymnasium.spaces.Box(-1, 1, (), np.float32),
    "whole": gymnasium.spaces.Box(-9, 9, (), np.int32),
}
SINGLE["several"] = gymnasium.spaces.Dict({**SINGLE, "row": gymnasium.spaces.Box(-1, 1, (2, 2), np.float32)})


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_number_is_a_row_of_one(name: str) -> None:
    space = SINGLE[name]
    flat = Flattening.of(space)
    for lead in ((5,), (3, 5)):
        parts = space.spaces if name == "several" else {"": space}
        given = {
            key: torch.ones((*lead, *part.shape)).to(getattr(torch, part.dtype.name)) for key, part in parts.items()
        }
        rows = flat.rows(given if name == "several" else given[""], len(lead)).reshape(math.prod(lead), -1)
        assert rows.shape[1] == flat.features == (7 if name == "several" else 1)
        scales = [
            1 / 255 if part.dtype == np.uint8 else 1.0 for part in parts.values() for _ in range(math.prod(part.shape))
        ]
        assert torch.equal(rows, torch.tensor(scales).expand_as(rows))


@pytest.mark.parametrize("several", [False, True])
def test_single_numbers_are_learnt_from(tmp_path: Path, device: str, several: bool) -> None:
    parts: dict[str, Any] = {
        "near": gymnasium.spaces.Box(-8, 8, (), np.float32),
        "far": gymnasium.spaces.Box(0, 255, (), np.uint8),
    }
    observe = "observation.near[0] = float(s.x); observation.far[0] = u8(3);" if several else "observation[0] = u8(7);"
    space = gymnasium.spaces.Dict(parts) if several else parts["far"]
    spec = walk(tmp_path, f"Single{several}-v0", observe=observe, more={"observation": space})
    with forgotten():
        gpu_envs.register(spec)
        trainer = Trainer(small(device, spec.id))
        trainer.iterate(2)
        assert all(torch.isfinite(learner.figures[:6]).all() for learner in trainer.learners.values())
