"""The choice of engines, and fallback to torch for settings and algorithms that kernels do not support."""

import dataclasses
from typing import Any, ClassVar

import pytest
from harness import HAS_CUDA
from trainers import FIELD, GRID, assert_resumes_identically, small_run

torch = pytest.importorskip("torch")

from fused_cases import box, discrete  # noqa: E402

from gpu_envs.training import A2C, GRU, LSTM, PPO, PQN, SAC, Network, Run, Trainer  # noqa: E402
from gpu_envs.training.algorithms import ALGORITHMS, Algorithm  # noqa: E402
from gpu_envs.training.algorithms.base import PolicyGradient  # noqa: E402
from gpu_envs.training.engines import ENGINES, Case, choose, torch_engine  # noqa: E402
from gpu_envs.training.engines.base import KernelEngine, Minibatch  # noqa: E402
from gpu_envs.training.engines.ops import Samples  # noqa: E402
from gpu_envs.training.modules import default_policy  # noqa: E402
from gpu_envs.training.process.group import Group  # noqa: E402
from gpu_envs.training.settings import setting  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

Tensor = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class DualClipPPO(PPO):  # type: ignore[misc]  # final; simulates one more setting in its file
    """PPO with a bound of the loss for negative advantages, too (Ye et al. 2020, eq. 5)."""

    dual_clip: float | None = setting(None, minimum=1.0, maximum=100.0, exclusive_minimum=True)
    """Bound of the loss in units of a negative advantage; None: no bound."""

    def policy_loss(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
        loss = super().policy_loss(log_probs, old_log_probs, advantages)
        if self.dual_clip is None:
            return loss
        return torch.where(advantages < 0, loss.minimum(-self.dual_clip * advantages), loss)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reinforce(PolicyGradient):
    """Policy gradient with the return as weight."""

    name: ClassVar[str] = "reinforce"

    def policy_loss(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
        """-R log pi(a); 0 times the old log-probabilities."""
        return -advantages * log_probs + 0.0 * old_log_probs


def case_of(algorithm: Algorithm, **changes: Any) -> Case:
    head = box(1) if isinstance(algorithm, SAC) else discrete(3)
    return dataclasses.replace(Case(algorithm, Network(precision="tf32"), head, 4, "cuda"), **changes)


@pytest.mark.skipif(HAS_CUDA, reason="the choice depends on the GPU")
def test_the_fastest_engine_that_can_is_chosen() -> None:
    wide = Network(hidden=(256, 256), precision="tf32")
    for case, name in (
        (case_of(PPO()), "small"),
        (case_of(A2C(), network=wide), "wide"),
        (case_of(PQN()), "functions"),
        (case_of(SAC(batch_size=256)), "small batch"),
        (case_of(SAC(batch_size=4096)), "GPU functions"),
        (case_of(SAC(), device="cpu"), "CPU functions"),
        (case_of(PPO(), device="cpu"), "CPU actor-critic"),
        (case_of(PQN(), device="cpu"), "CPU Q network"),
        (case_of(PPO(), default=False), "torch"),
        (case_of(PQN(), network=Network(precision="tf32", fused=False)), "torch"),
        (case_of(PPO(), network=dataclasses.replace(wide, hidden=(300,))), "torch"),
    ):
        assert choose(case)[0].name == name
    _, reason = choose(case_of(PPO(), network=Network(hidden=(300,), precision="tf32")))
    assert reason == (
        "hidden layers are (300,), not two of 32 or 64 (for small networks' kernels), and hidden layers are (300,), "
        "not one to 3 of 64, 128, 192, 256 (for wide networks' kernels)"
    )
    wide_rows = case_of(PPO(), device="cpu", features=513)
    assert choose(wide_rows)[1] == "observations have 513 features, more than 512"
    memory = Network(hidden=(64,), memory=GRU(64), precision="tf32")
    for changes, reason in (
        ({"fused": True}, ""),
        ({"fused": False}, "fused is False"),
        ({"memory": LSTM(64)}, "its memory is not a GRU"),
        ({"memory": GRU(48)}, "hidden layers are (64,) and the memory is gru:48, not one layer and a GRU of 32 or 64"),
        ({"activation": "elu"}, "the activation is elu, not tanh or relu"),
        ({"layer_norm": True}, "layer_norm is on"),
        ({"precision": "bf16"}, "the precision is bf16, not tf32"),
    ):
        case = case_of(PPO(), network=dataclasses.replace(memory, **changes))
        assert choose(case) == (torch_engine(case), reason)
        assert ("recurrent/gru.cuh" in str(torch_engine(case).describe(case))) == (not reason)
    with pytest.raises(ValueError, match="fused is True, but observations have 33 features, more than 32; leave"):
        choose(case_of(PPO(), network=dataclasses.replace(memory, fused=True), features=33))
    with pytest.raises(ValueError, match=r"fused is True, but hidden layers are .300,., and the kernels take up"):
        choose(case_of(PPO(), device="cpu", network=Network(fused=True, hidden=(300,))))


@pytest.mark.parametrize("engine", [e for e in ENGINES if isinstance(e, KernelEngine)], ids=lambda e: type(e).__name__)
def test_kernels_refuse_every_setting_that_they_do_not_declare(
    engine: KernelEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names the setting; and all declared settings exist."""
    fields = {field.name for cls in (*ALGORITHMS.values(), Network) for field in dataclasses.fields(cls)}
    assert fields >= {*engine.settings}
    for cls in engine.algorithms:
        algorithm = cls()
        case = case_of(algorithm, device=engine.device)
        for part, settings in (("algorithm", algorithm), ("network", case.network)):
            extended = dataclasses.make_dataclass("Extended", [("more", int, 0)], bases=(type(settings),), frozen=True)
            values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
            monkeypatch.setattr(type(engine), "algorithms", (cls, extended))
            default, changed = (dataclasses.replace(case, **{part: extended(**values, more=more)}) for more in (0, 1))
            assert "more is" not in engine.fallback_reason(default)
            assert engine.fallback_reason(changed) == "more is 1, which these kernels do not support"


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", GRID, FIELD, "Masked"])
@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "pqn"])
def test_loss_kernels_match_the_algorithms(algorithm: str, env: str, device: str) -> None:
    """Gradients and metrics, of all samples and of a minibatch, with inactive agents and masks."""
    if algorithm == "pqn" and env == "Pendulum-v1":
        pytest.skip("pqn supports discrete actions only")
    settings: dict[str, Any] = {} if algorithm == "pqn" else {"entropy_weight": 0.1}
    settings |= {"value_clip": 0.05} if algorithm == "ppo" else {}
    name = "CartPole-v1" if env == "Masked" else env
    trainer: Any = Trainer(small_run(device, name, algorithm=algorithm, fused=False, learning_rate=0.01, **settings))
    trainer.iterate(2)
    trainer.roll_out()
    learner: Any = next(iter(trainer.learners.values()))
    learner.finish_rollout(trainer.horizon_env.storage)
    trainer._schedules.write()  # noqa: SLF001 - the entropy weight
    observations, batch = learner.samples
    samples, head = len(batch.returns), learner.policy_rows.head
    numbers = torch.Generator().manual_seed(1)
    if env == "Masked":
        mask = torch.rand((samples, head.parameters), generator=numbers) < 0.7
        batch = dataclasses.replace(batch, action_mask=mask.to(torch.int8).to(trainer.device))
    moved = batch.log_probs + 0.3 * torch.randn(samples, generator=numbers).to(trainer.device)
    batch = dataclasses.replace(batch, log_probs=moved)
    chosen = torch.randperm(samples, generator=numbers)[: samples // 3].int().to(trainer.device)
    networks = learner.networks
    assert not networks._loss_in_torch  # noqa: SLF001 - kernel and torch are compared
    for indices in (None, chosen):
        minibatch = Minibatch(observations, batch, indices, learner.algorithm, learner.scalars)
        results = []
        for networks._loss_in_torch in (False, True):  # noqa: SLF001 - kernel and torch are compared
            totals = torch.full((6,), torch.nan, device=trainer.device)
            networks.gradient(minibatch, totals)
            results.append((learner.optimiser.gradient.clone(), totals))
        networks._loss_in_torch = False  # noqa: SLF001 - kernel and torch are compared
        (gradient, totals), (torch_gradient, torch_totals) = results
        assert torch.linalg.norm(gradient - torch_gradient) <= 1e-5 * torch.linalg.norm(gradient)
        torch.testing.assert_close(totals, torch_totals, rtol=1e-5, atol=1e-4)


def test_samples_of_inactive_agents_do_not_count(device: str) -> None:
    """They may be NaN: observations, and so the actions."""
    numbers, algorithm = torch.Generator().manual_seed(1), PPO()
    case = case_of(algorithm, head=box(2), device=device, threads=1)
    module = default_policy(case, numbers).to(device)
    networks: Any = torch_engine(case).make(case, module, None, Group())
    alive = torch.tensor([True, True, False, True, False, True])
    rows = [torch.randn(shape, generator=numbers) for shape in ((6, 4), (6, 2), (6,), (6,), (6,), (6,))]
    for array in rows:
        array[~alive] = torch.nan
    observations, actions, log_probs, advantages, returns, values = (array.to(device) for array in rows)
    samples = Samples(actions, log_probs, advantages, returns, values, alive.to(device))
    scalars = torch.tensor([0.0, 1.0, 0.1, 0.2], device=device)
    minibatch = Minibatch(observations, samples, None, algorithm, scalars)
    gradients = []
    for networks._loss_in_torch in (False, True):  # noqa: SLF001 - kernel and torch are compared
        networks.gradient(minibatch, torch.zeros(6, device=device))
        gradients.append(networks.optimiser.gradient.clone())
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def register(monkeypatch: pytest.MonkeyPatch, algorithm: type[Algorithm]) -> None:
    """Registers an algorithm's class in place of the package's class of that name, for kernels, too."""
    algorithms: Any = ALGORITHMS
    monkeypatch.setitem(algorithms, algorithm.name, algorithm)
    for engine in ENGINES:
        if isinstance(engine, KernelEngine) and algorithm.name in {cls.name for cls in engine.algorithms}:
            monkeypatch.setattr(type(engine), "algorithms", (algorithm,))


def run_of(algorithm: Algorithm, device: str) -> Run:
    network = Network(hidden=(16, 16), fused=None)
    return Run(
        env="CartPole-v1",
        algorithm=algorithm,
        network=network,
        device=device,
        num_envs=8,
        horizon=16,
        run_dir="",
        total_steps=8 * 16 * 100,
        threads=1,
    )


def test_a_new_setting_of_an_algorithm_has_an_effect(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its default kernels compute the loss; with another value torch does."""
    register(monkeypatch, DualClipPPO)
    default, clipped = (case_of(DualClipPPO(dual_clip=value)) for value in (None, 1.5))
    assert choose(dataclasses.replace(default, device="cuda"))[0].name == "small"
    engine, reason = choose(clipped)
    assert (engine.name, reason) == ("torch", "dual_clip is 1.5, which these kernels do not support")
    weights = []
    for dual_clip in (None, 100.0, 1.0001):
        trainer: Any = Trainer(run_of(DualClipPPO(dual_clip=dual_clip, learning_rate=0.03), device))
        trainer.iterate(4)
        learner = trainer.learners["agent"]
        weights.append(learner.optimiser.flat.clone())
    unbounded, bounded_far, bounded = weights
    torch.testing.assert_close(unbounded, bounded_far, rtol=1e-2, atol=1e-3)  # the same steps, with other roundings
    assert (unbounded - bounded).abs().max() > 0.01


def test_kernels_refuse_subclasses_of_algorithms() -> None:
    """They may have another loss."""
    assert choose(case_of(DualClipPPO())) == (
        torch_engine(case_of(PPO())),
        "the kernels compute the loss of ppo and a2c, not of DualClipPPO",
    )


def test_a_new_algorithm_learns_with_its_loss(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, Reinforce)
    _, reason = choose(case_of(Reinforce()))
    assert reason == "the kernels compute the loss of ppo and a2c, not of reinforce"
    reinforce, a2c = (Trainer(run_of(cls(learning_rate=0.01), device)) for cls in (Reinforce, A2C))
    for trainer in (reinforce, a2c):
        trainer.iterate(3)
    both: list[Any] = [trainer.learners["agent"] for trainer in (reinforce, a2c)]
    torch.testing.assert_close(both[0].optimiser.flat, both[1].optimiser.flat, rtol=1e-3, atol=1e-4)
    assert_resumes_identically(run_of(Reinforce(), device))
