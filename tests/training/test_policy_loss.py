"""The loss and its gradients, against the same written with torch's distributions and differentiated by torch."""

import dataclasses
import math
from typing import Any

import gymnasium
import pytest

torch = pytest.importorskip("torch")

from gpu_envs.backend import resolve_device  # noqa: E402
from gpu_envs.training.operations.heads import Head  # noqa: E402
from gpu_envs.training.operations.ops import LossSettings, Ops, Samples  # noqa: E402

Tensor = Any
EPS = 2.0**-24

HEADS = {
    "discrete": Head.of(gymnasium.spaces.Discrete(6, start=-2)),
    "wide": Head.of(gymnasium.spaces.Discrete(150)),
    "multidiscrete": Head.of(gymnasium.spaces.MultiDiscrete([5, 2, 9])),
    "box": Head.of(gymnasium.spaces.Box(-1, 1, (3,))),
}
SETTINGS = {
    "ppo": LossSettings(value_weight=0.5),
    "ppo, values clipped": LossSettings(value_clip=0.2, value_weight=0.7),
    "a2c": LossSettings(clipped=False, value_weight=1.5),
}
SCALARS = [0.3, 1.7, 0.05, 0.2]
"""The advantages' mean, one over their deviation, the entropy's weight, the clip range."""


@dataclasses.dataclass
class Case:
    """Outputs of a policy, and samples of one that was a little different."""

    head: Head
    parameters: Tensor
    values: Tensor
    batch: Samples


def log_prob_and_entropy(head: Head, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    if head.kind == "box":
        normal = torch.distributions.Normal(parameters[:, : head.width], parameters[:, head.width :].exp())
        return normal.log_prob(actions).sum(1), normal.entropy().sum(1)
    parts = [torch.distributions.Categorical(logits=part) for part in parameters.split(head.sizes, 1)]
    chosen = [part.log_prob(actions[:, d] - head.starts[d]) for d, part in enumerate(parts)]
    return torch.stack(chosen).sum(0), torch.stack([part.entropy() for part in parts]).sum(0)


def case(name: str, samples: int = 1000) -> Case:
    head, generator = HEADS[name], torch.Generator().manual_seed(samples)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    parameters = normal(samples, head.parameters)
    if head.kind == "discrete":
        columns = [torch.randint(s, s + n, (samples,), generator=generator, dtype=torch.int32) for s, n in zip(
            head.starts, head.sizes, strict=True)]  # fmt: skip
        actions = torch.stack(columns, 1)
    else:
        actions = parameters[:, : head.width] + parameters[:, head.width :].exp() * normal(samples, head.width)
    log_probs = log_prob_and_entropy(head, parameters, actions)[0] + 0.3 * normal(samples)
    values = normal(samples)
    batch = Samples(actions, log_probs, normal(samples), normal(samples), values + 0.3 * normal(samples))
    return Case(head, parameters, values, batch)


def expected_of(case: Case, indices: Tensor | None, settings: LossSettings) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by parameters and values, and the sums, in float64."""
    batch, mean, inverse, entropy_weight, clip = case.batch, *SCALARS
    chosen = torch.arange(len(batch.log_probs)) if indices is None else indices.long()
    parameters, values = case.parameters.double().requires_grad_(), case.values.double().requires_grad_()
    actions = batch.actions[chosen] if case.head.kind == "discrete" else batch.actions[chosen].double()
    old, advantages, returns, old_values = (
        t[chosen].double() for t in (batch.log_probs, batch.advantages, batch.returns, batch.values)
    )
    alive = torch.ones(len(chosen), dtype=torch.bool) if batch.alive is None else batch.alive[chosen].bool()
    log_prob, entropy = log_prob_and_entropy(case.head, parameters, actions)
    ratio = (log_prob - old).exp()
    advantages = (advantages - mean) * inverse
    clipped = torch.zeros_like(ratio)
    if settings.clipped:
        policy = torch.maximum(-advantages * ratio, -advantages * ratio.clip(1 - clip, 1 + clip))
        clipped = ((ratio - 1).abs() > clip).double()
    else:
        policy = -advantages * log_prob
    value = 0.5 * (values - returns) ** 2
    if settings.value_clip is not None:
        near = old_values + (values - old_values).clip(-settings.value_clip, settings.value_clip)
        value = torch.maximum(value, 0.5 * (near - returns) ** 2)
    (policy + settings.value_weight * value - entropy_weight * entropy)[alive].sum().backward()
    kl = ratio - 1 - (log_prob - old)
    sums = torch.stack([policy, value, entropy, kl, clipped, torch.ones_like(ratio)]).detach()
    return parameters.grad, values.grad, torch.where(alive, sums, 0.0)


def found_of(case: Case, indices: Tensor | None, settings: LossSettings, device: str) -> tuple[Tensor, Tensor, Tensor]:
    place = torch.device(resolve_device(device))
    parts = {f.name: getattr(case.batch, f.name) for f in dataclasses.fields(Samples)}
    moved: dict[str, Any] = {name: None if part is None else part.to(place) for name, part in parts.items()}
    batch = Samples(**moved)
    parameters, values = case.parameters.to(place), case.values.to(place)
    # (what is written must not be read)
    outputs = [torch.full_like(parameters, math.nan), torch.full_like(values, math.nan)]
    outputs.append(torch.full((6, len(values)), math.nan, device=place))
    given = None if indices is None else indices.to(place)
    scalars = torch.tensor(SCALARS, device=place)
    Ops(case.head, device).loss(parameters, values, batch, given, settings, scalars, *outputs)
    return outputs[0].cpu(), outputs[1].cpu(), outputs[2].cpu()


def compare(case: Case, indices: Tensor | None, settings: LossSettings, device: str) -> None:
    (by_parameters, by_values, sums), expected = (
        found_of(case, indices, settings, device),
        expected_of(case, indices, settings),
    )
    # Log-probabilities: each element's are good to some roundings of what stays below 32, and sums of 150 shares to
    # 150; Gaussian ones come of squared distances, of deviations known to two units in the last place.
    error = case.head.width * 64 * EPS + max(case.head.sizes) * 2 * EPS
    # They enter through a ratio below e^1.5, times an advantage below 8; a Gaussian's are divided by deviations and
    # multiplied by squared distances, which the gradient itself measures.
    weight = 8 * math.exp(1.5)
    bound = weight * error + 32 * EPS * expected[0].abs()
    assert ((by_parameters - expected[0]).abs() <= bound).all()
    assert (by_values - expected[1]).abs().max() < 32 * EPS * settings.value_weight
    assert (sums[0] - expected[2][0]).abs().max() < weight * error + 32 * EPS * expected[2][0].abs().max()
    assert (sums[1] - expected[2][1]).abs().max() < 64 * EPS * 8
    assert (sums[2] - expected[2][2]).abs().max() < error
    assert (sums[3] - expected[2][3]).abs().max() < weight * error
    assert torch.equal(sums[4:], expected[2][4:].float())


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", HEADS)
def test_loss_and_gradients(name: str, settings: str, device: str) -> None:
    compare(case(name), None, SETTINGS[settings], device)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", HEADS)
def test_indices_choose_the_samples(name: str, settings: str, device: str) -> None:
    whole = case(name, 1000)
    indices = torch.randperm(1000, generator=torch.Generator().manual_seed(1))[:333].int()
    part = dataclasses.replace(whole, parameters=whole.parameters[indices], values=whole.values[indices])
    compare(part, indices, SETTINGS[settings], device)
    one = found_of(part, indices, SETTINGS[settings], device)
    all_of_them = found_of(whole, None, SETTINGS[settings], device)
    assert torch.equal(one[0], all_of_them[0][indices])
    assert torch.equal(one[2], all_of_them[2][:, indices])


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", HEADS)
def test_the_dead_count_for_nothing(name: str, settings: str, device: str) -> None:
    whole = case(name)
    alive = torch.rand(1000, generator=torch.Generator().manual_seed(2)) < 0.6

    def spoilt(part: Tensor) -> Tensor:
        nonsense = math.nan if part.is_floating_point() else 2**30
        return torch.where(alive if part.ndim == 1 else alive[:, None], part, nonsense)

    names = [f.name for f in dataclasses.fields(Samples) if f.name not in ("alive", "action_mask")]
    batch = dataclasses.replace(whole.batch, **{name: spoilt(getattr(whole.batch, name)) for name in names})
    batch = dataclasses.replace(batch, alive=alive.to(torch.uint8))
    bad = Case(whole.head, spoilt(whole.parameters), spoilt(whole.values), batch)
    found, of_all = found_of(bad, None, SETTINGS[settings], device), found_of(whole, None, SETTINGS[settings], device)
    for one, other in zip(found, of_all, strict=True):
        kept = alive[:, None] if one.shape == (1000, whole.head.parameters) else alive
        assert torch.equal(one, torch.where(kept, other, 0.0))


def test_a_choice_that_is_never_taken_has_no_gradient(device: str) -> None:
    one = case("discrete")
    one.parameters[:, 2] = -math.inf
    one.batch.actions[one.batch.actions == 0] = 1  # choice 2, for they start at -2
    found = found_of(one, None, SETTINGS["ppo"], device)
    assert (found[0][:, 2] == 0).all()
    assert all(part.isfinite().all() for part in found)


@pytest.mark.parametrize("name", HEADS)
def test_the_policy_that_acted_has_ratio_one_exactly(name: str, device: str) -> None:
    one, place = case(name), torch.device(resolve_device(device))
    actions, log_probs = one.batch.actions.to(place), torch.empty(1000, device=place)
    stream = torch.tensor([1, 2], device=place)
    Ops(one.head, device).sample(one.parameters.to(place), actions, log_probs, stream=stream, turn=0)
    one.batch = dataclasses.replace(one.batch, actions=actions, log_probs=log_probs)
    sums = found_of(one, None, SETTINGS["ppo"], device)[2]
    assert (sums[3] == 0).all()
    assert (sums[4] == 0).all()


def test_as_many_rows_as_samples(device: str) -> None:
    whole = case("discrete")
    part = dataclasses.replace(whole, parameters=whole.parameters[:10], values=whole.values[:10])
    with pytest.raises(ValueError, match="there are 10 rows for 1000 samples; give indices"):
        found_of(part, None, SETTINGS["ppo"], device)
