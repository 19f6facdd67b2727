"""Adam over a flat buffer, against torch's Adam with torch's gradient clipping."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpu_envs.backend import resolve_device  # noqa: E402
from gpu_envs.training.engines.optimiser import Adam, Step  # noqa: E402

Tensor = Any
EPS = 2.0**-24
RATE = 0.01


def network(device: str) -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(7, 33), torch.nn.Tanh(), torch.nn.Linear(33, 3)]
    return torch.nn.Sequential(*layers).to(resolve_device(device))


def gradients(net: Any, step: int, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [scale * torch.randn(p.shape, generator=generator).to(p.device) for p in net.parameters()]


class Run:
    """An optimiser and the arguments of its steps."""

    def __init__(self, net: Any, device: str, **settings: Any) -> None:
        self.net = net
        self.adam = Adam(list(net.parameters()), device=device, **settings)
        place = resolve_device(device)
        self.rate = torch.full((1,), RATE, device=place)
        self.stop = torch.zeros(1, dtype=torch.int32, device=place)
        self.norm = torch.full((1,), -1.0, device=place)

    def step(self, grads: list[Tensor], samples: float = 1.0, max_norm: float | None = None, stop: int = 0) -> None:
        self.adam.totals[5] = samples
        self.stop.fill_(stop)
        self.adam.gather(grads)
        self.adam.step(Step(self.rate, max_norm, self.norm, self.stop))

    def flat(self) -> Tensor:
        return torch.cat([p.detach().ravel() for p in self.net.parameters()]).clone()


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.95)])
@pytest.mark.parametrize("max_norm", [None, 0.5, 1e6])
def test_steps_match_torch(max_norm: float | None, betas: tuple[float, float], device: str) -> None:
    net, samples, steps = network(device), 37.0, 20
    expected = copy.deepcopy(net)
    run = Run(net, device, betas=betas)
    adam = torch.optim.Adam(expected.parameters(), lr=RATE, eps=1e-5, betas=betas)
    for step in range(steps):
        grads = gradients(net, step, scale=samples if step % 2 else 0.01 * samples)
        for p, grad in zip(expected.parameters(), grads, strict=True):
            p.grad = grad / samples
        norm = torch.nn.utils.clip_grad_norm_(expected.parameters(), 1e9 if max_norm is None else max_norm)
        adam.step()
        run.step(grads, samples, max_norm)
        # A norm of 366 numbers, summed in any order: the sum of squares has an error of at most 366 roundings.
        assert abs(run.norm.item() - norm.item()) <= 366 * EPS * norm.item()
    difference = run.flat() - torch.cat([p.detach().ravel() for p in expected.parameters()])
    # Clipped gradients have the relative error of the norms, and so has each step, of at most RATE / sqrt(1 - beta2);
    # the parameters, below 1, are rounded once per step in both.
    max_step = RATE / (1 - betas[1]) ** 0.5
    assert difference.abs().max() < steps * (max_step * (366 + 20) * EPS + 2 * EPS)


@pytest.mark.parametrize(("samples", "stop"), [(0.0, 0), (5.0, 1), (0.0, 1)])
def test_nothing_changes_without_samples_or_when_stopped(samples: float, stop: int, device: str) -> None:
    run, undisturbed = Run(network(device), device), Run(network(device), device)
    run.step(gradients(run.net, 0))
    undisturbed.step(gradients(run.net, 0))
    before, state, norm = run.flat(), run.adam.state(), run.norm.item()
    spoilt = [torch.full_like(grad, torch.nan) for grad in gradients(run.net, 1)]
    run.step(spoilt, samples, 0.5, stop)
    assert torch.equal(run.flat(), before)
    assert all(torch.equal(state[name], tensor) for name, tensor in run.adam.state().items())
    assert run.norm.item() == norm
    for each in (run, undisturbed):
        each.step(gradients(run.net, 2))
    assert torch.equal(run.flat(), undisturbed.flat())


def test_wrong_states_gradients_and_parameters_are_refused(device: str) -> None:
    run = Run(network(device), device)
    state = run.adam.state()
    with pytest.raises(ValueError, match=r"no 'step'\. Did you mean 'steps'"):
        run.adam.load({**state, "step": state["steps"]})
    with pytest.raises(ValueError, match=r"means of the optimiser's state is of shape \[1\]; give shape \[366\]"):
        run.adam.load({**state, "means": state["steps"]})
    with pytest.raises(ValueError, match="gradients have shapes"):
        run.adam.gather(gradients(run.net, 0)[1:])
    twice = list(run.net.parameters())[:1] * 2
    with pytest.raises(ValueError, match="each of them once"):
        Adam(twice, device=device)
    with pytest.raises(ValueError, match=r"parameters\[0\] is torch\.float64.*with module\.to\("):
        Adam([torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))], device=device)


def test_a_refused_step_changes_nothing(device: str) -> None:
    run, alone = (Run(network(device), device) for _ in range(2))
    how, wrong = Step(run.rate, None, run.norm), Step(9 * run.rate, None, run.norm.double())
    for step in (how, wrong, how):
        run.adam.totals[5] = 1.0
        run.adam.gather(gradients(run.net, 0))
        if step is wrong:
            with pytest.raises(ValueError, match="norm"):
                run.adam.step(wrong)
            continue
        run.adam.step(step)
        alone.step(gradients(alone.net, 0))
    assert torch.equal(run.flat(), alone.flat())
    assert run.norm.item() == alone.norm.item()


def test_a_gradient_of_zero_takes_no_step(device: str) -> None:
    run = Run(network(device), device)
    before = run.flat()
    run.step([torch.zeros_like(grad) for grad in gradients(run.net, 0)], max_norm=0.5)
    assert torch.equal(run.flat(), before)
    assert run.norm.item() == 0
