"""Exported policies: ONNX models compute what torch computes, and files of weights are the same policies."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_tools import code_without, run_process
from exporting import perturbed_run, run_model, session_of, set_precision
from trainers import FIELD, FIELD_PARAMS, GRID, last_checkpoint

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from torch import nn  # noqa: E402

import gpu_envs  # noqa: E402
from gpu_envs.errors import CheckpointError, UntrustedError  # noqa: E402
from gpu_envs.training import PolicyModule, evaluate, export_policies, load_policies, resume  # noqa: E402
from gpu_envs.training.observations import join_rows  # noqa: E402
from gpu_envs.training.policy import learns  # noqa: E402
from gpu_envs.training.presets import PRESETS  # noqa: E402
from gpu_envs.training.rollout.horizon_env import RoleTensors  # noqa: E402
from gpu_envs.training.rollout.plan import PolicyRows  # noqa: E402

pytestmark = [
    pytest.mark.slow,  # each export costs seconds
    pytest.mark.usefixtures("one_thread", "masked_environments"),
]

ENVS, STEPS = 5, 4
CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "hidden": (16, 16)}
PENDULUM: dict[str, Any] = {"env": "Pendulum-v1", "hidden": (16, 16)}


def reference_outputs(networks: Any, observation: Any, state: Any = None) -> tuple[Any, Any]:
    """Returns the outputs of a policy's module, in float32, by the module's definition; with memory the next state."""
    rows = observation.clone()
    if networks.scale is not None:
        rows = ((rows - networks.scale.mean.float()) / networks.scale.variance.clamp(min=1e-8).sqrt().float()).clip(
            -10, 10
        )
    module = networks.module.eval()
    with torch.no_grad():
        if state is not None:
            parameters, _, next_state = module(rows.unsqueeze(0), state, torch.zeros(1, len(rows), dtype=torch.bool))
            return parameters[0], next_state
        outputs = module.actor(rows) if hasattr(module, "critics") else module(rows)
    return outputs[0] if isinstance(outputs, tuple) else outputs, None


def assert_near(actual: Any, expected: Any, largest: Any) -> None:
    assert np.abs(np.asarray(actual) - np.asarray(expected)).max() <= 1e-5 * float(np.abs(np.asarray(largest)).max())


def assert_same_actions(folder: Path, file: Path, modules: Mapping[str, Any] | None = None) -> dict[str, Path]:
    """Compares the models of a run in ``folder`` with torch's actions in its environment; returns files by policy."""
    policies = load_policies(folder, device="cpu", modules=modules)
    env = policies.make(ENVS)
    act, tensors = policies.acting_in(env), RoleTensors(env, frames=policies.config.frame_stack)
    files = {name: file for name in policies.parts if learns(name)}
    if env.env_spec.has_team:
        files = {name: file.with_stem(f"{file.stem}-{name}") for name in files}
    observations, _ = env.reset(seed=1)
    states: dict[str, Any] = {}
    for _ in range(STEPS):
        by_role, masks, actions = tensors.observations(observations), tensors.action_masks(), act(observations)
        for name, path in files.items():
            parts = policies.parts[name]
            rows, role = PolicyRows(name, parts, ENVS, "cpu"), parts[0].role
            inputs = {"observation": join_rows(rows.observed(by_role, 0))}
            networks: Any = policies.networks[name]
            if networks.state_size:
                before = states.get(name, torch.zeros(rows.rows, networks.state_size))
                inputs["state"] = torch.where(rows.take(tensors.starts(), 0).unsqueeze(1), 0.0, before)
            expected, states[name] = reference_outputs(networks, inputs["observation"], inputs.get("state"))
            if masks:
                inputs["action_mask"] = rows.take(masks, 0)
            results = run_model(path, **inputs)
            if networks.state_size:
                assert_near(results["next_state"], states[name], states[name])
            agents = {r.name: (ENVS, r.agents, r.head.width) for r in tensors.roles}
            taken = rows.take({r: a.view(agents[r]) for r, a in tensors.by_role.split(actions).items()}, 0).numpy()
            shape = (len(taken),) if role.head.scalar else taken.shape
            assert results["action"].shape == shape
            if role.head.kind == "box":
                assert results["action"].dtype == np.float32
                mean = expected[:, : role.head.width]
                assert float(mean.abs().max()) > 0.01
                assert_near(results["mean"], mean, mean)
                assert_near(results["action"], taken, taken)
                continue
            kind = "logits" if networks.epsilon is None else "q_values"
            assert results["action"].dtype == np.int64
            assert float(expected.abs().max()) > 0.01
            assert_near(results[kind], expected, expected)
            scores = expected if not masks else torch.where(inputs["action_mask"] != 0, expected, -1e9)
            chosen = results["action"].reshape(taken.shape)
            for d, each in enumerate(scores.split([*role.head.sizes], 1)):
                best = each.sort(1, descending=True).values[:, :2].diff().abs().amax(1) if each.shape[1] > 1 else None
                clear = best > 1e-5 * expected.abs().max() if best is not None else torch.ones(len(each)).bool()
                assert bool(clear.any())
                assert np.array_equal(chosen[clear, d], taken[clear, d])
        observations, *_ = env.step(actions)
    return files


CASES = [(env, name) for env, presets in PRESETS.items() for name in presets]


@pytest.mark.parametrize(
    ("env", "preset"),
    [pytest.param(*c, id="-".join(c)) for c in CASES],
)
def test_models_of_presets_are_torch_policies(env: str, preset: str, tmp_path: Path) -> None:
    values = PRESETS[env][preset]
    run = perturbed_run(tmp_path / "run", **{**values, "env": env})
    set_precision(run, values.get("precision", "float32"))
    files = export_policies(run, tmp_path / "policy.onnx")
    set_precision(run, "float32")
    assert sorted(assert_same_actions(run, tmp_path / "policy.onnx").values()) == sorted(files)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"env": "MaskedCorridor-v0", "hidden": (16, 16)}, marks=pytest.mark.end_to_end),
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (
                {**CARTPOLE, "normalise_observations": True, "shared_trunk": True, "layer_norm": True},
                {**CARTPOLE, "algorithm": "pqn"},
                {**PENDULUM, "normalise_observations": True},
                {**CARTPOLE, "activation": "gelu"},
                {**CARTPOLE, "activation": "silu", "algorithm": "a2c"},
                {**PENDULUM, "algorithm": "td3", "layer_norm": True, "activation": "elu"},
                {**PENDULUM, "algorithm": "ddpg", "normalise_observations": True},
                {"env": "MaskedTeam-v0", "hidden": (16, 16), "normalise_observations": True},
                {"env": "MaskedTeam-v0", "hidden": (16, 16), "algorithm": "pqn"},
                {"env": "PicturedCorridor-v0", "hidden": (16, 16)},
                {"env": "BytesCorridor-v0", "hidden": (16, 16)},
                {"env": GRID, "hidden": (16, 16), "policies": {"tagger": "both", "runner": "both"}},
                {"env": FIELD, "params": {**FIELD_PARAMS, "actions": "continuous"}, "hidden": (16, 16)},
            )
        ),
    ],
    ids=str,
)
def test_models_of_settings(settings: dict[str, Any], tmp_path: Path) -> None:
    run = perturbed_run(tmp_path / "run", **settings)
    for sampled in (False, True):
        export_policies(run, tmp_path / "policy.onnx", sampled=sampled)
        if not sampled:
            assert_same_actions(run, tmp_path / "policy.onnx")


class Changing(nn.Module):
    """A module that changes its input, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh()), nn.Linear(8, 3)

    def forward(self, observations: Any) -> tuple[Any, Any]:
        observations[:, 0] = 0.0
        both = self.heads(self.body(observations))
        return both[:, :2], both[:, 2]


class Separate(PolicyModule):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)

    def distribution(self, observations: Any) -> Any:
        return self.actor(observations)

    def value(self, observations: Any) -> Any:
        return self.critic(observations)[:, 0]


@pytest.mark.parametrize("module", [Changing, Separate])
@pytest.mark.slow
def test_modules_of_users(module: Callable[[], nn.Module], tmp_path: Path) -> None:
    run = perturbed_run(tmp_path / "run", {"agent": module()}, env="CartPole-v1")
    for name in ("policy.onnx", "policy.safetensors"):
        export_policies(run, tmp_path / name, modules={"agent": module()})
    assert_same_actions(run, tmp_path / "policy.onnx", {"agent": module()})
    assert_same_actions(tmp_path / "policy.safetensors", tmp_path / "policy.onnx", {"agent": module()})


# --- the file ---


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and its weights."""
    folder = tmp_path_factory.mktemp("cartpole")
    perturbed_run(folder / "run", **CARTPOLE, normalise_observations=True)
    export_policies(folder / "run", folder / "policy.safetensors")
    return folder


@pytest.fixture(scope="module")
def model(cartpole: Path) -> Path:
    """The run's model."""
    (path,) = export_policies(cartpole / "run", cartpole / "policy.onnx")
    return path


@pytest.mark.end_to_end
def test_inputs_outputs_and_metadata(model: Path) -> None:
    session, properties = session_of(model), onnx.load(model).metadata_props
    described = [(each.name, each.type, each.shape[1:]) for each in session.get_inputs() + session.get_outputs()]
    floats, integers = "tensor(float)", "tensor(int64)"
    assert described == [("observation", floats, [4]), ("action", integers, []), ("logits", floats, [2])]
    texts = {each.key: each.value for each in properties}
    assert (texts["env"], texts["params"], texts["policy"]) == ("CartPole-v1", "{}", "agent")
    assert (texts["steps"], texts["gpu_envs"]) == ("32", gpu_envs.__version__)
    assert json.loads(texts["returns"]) == {}  # no episode has ended
    for rows in (0, 1, 1000):
        assert run_model(model, observation=np.zeros((rows, 4), np.float32))["action"].shape == (rows,)


@pytest.mark.end_to_end
def test_normalised_observations_are_clipped(cartpole: Path, model: Path) -> None:
    far, farther = (np.array([[x, x, -x, x]], np.float32) for x in (1e4, 1e7))
    outputs = [run_model(model, observation=each)["logits"] for each in (far, farther)]
    assert np.array_equal(outputs[0], outputs[1])
    networks: Any = load_policies(cartpole / "run", device="cpu").networks["agent"]
    with torch.no_grad():
        clipped = networks.module(torch.tensor([[10.0, 10.0, -10.0, 10.0]]))[0]
    assert_near(outputs[0], clipped, clipped)


@pytest.mark.slow
def test_a_team_has_a_model_for_each_policy_that_learns(tmp_path: Path) -> None:
    run = perturbed_run(tmp_path / "run", env=GRID, hidden=(16, 16), policies={"runner": "random"})
    assert export_policies(run, tmp_path / "policy.onnx") == [tmp_path / "policy-tagger.onnx"]
    assert [path.name for path in tmp_path.glob("*.onnx")] == ["policy-tagger.onnx"]


@pytest.mark.slow
def test_nothing_is_printed(cartpole: Path, tmp_path: Path) -> None:
    code = f"from gpu_envs.training import export_policies; export_policies({str(cartpole / 'run')!r}, 'policy.onnx')"
    done = run_process(code=code, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.end_to_end
def test_a_model_that_differs_from_torch_is_not_written(
    cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a version of torch exported a layer wrongly."""
    onnx_ir = pytest.importorskip("onnx_ir")
    export = torch.onnx.export

    def wrong(*args: Any, **kwargs: Any) -> Any:
        program = export(*args, **kwargs)
        for name, value in program.model.graph.initializers.items():
            if name.endswith("actor.4.bias"):
                array = value.const_value.numpy().copy()
                array[0] += 1e-3
                value.const_value = onnx_ir.tensor(array)
        return program

    monkeypatch.setattr(torch.onnx, "export", wrong)
    with pytest.raises(ValueError, match="differs from torch"):
        export_policies(cartpole / "run", tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


# --- sampled actions ---

DRAWS = 40_000
SLOW_PQN = pytest.param("pqn", marks=pytest.mark.slow)


def draws(folder: Path, inputs: dict[str, Any], noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns many actions for one observation, and the outputs for it."""
    repeated = {name: np.repeat(np.asarray(array), DRAWS, 0) for name, array in inputs.items()}
    action, outputs = run_model(folder / "policy.onnx", **repeated, noise=noise.astype(np.float32)).values()
    return action, outputs[0]


def assert_frequencies(choices: np.ndarray, probabilities: np.ndarray) -> None:
    found = np.bincount(choices, minlength=len(probabilities)) / len(choices)
    assert (
        np.abs(found - probabilities) < 5 * np.sqrt(probabilities * (1 - probabilities) / len(choices)) + 1e-9
    ).all()


@pytest.mark.parametrize("algorithm", [pytest.param("ppo", marks=pytest.mark.end_to_end), SLOW_PQN])
def test_frequencies_of_discrete_actions(algorithm: str, tmp_path: Path) -> None:
    run = perturbed_run(tmp_path / "run", env="Acrobot-v1", hidden=(8,), algorithm=algorithm)
    export_policies(run, tmp_path / "policy.onnx", sampled=True)
    numbers = np.random.default_rng(0)
    row = {"observation": numbers.normal(size=(1, 6)).astype(np.float32)}
    action, outputs = draws(tmp_path, row, numbers.random((DRAWS, 3)))
    probabilities = np.exp(outputs - outputs.max()) / np.exp(outputs - outputs.max()).sum()
    if algorithm == "pqn":
        epsilon = float(last_checkpoint(run)["learners"]["agent"]["epsilon"])
        assert epsilon == pytest.approx(0.3)
        probabilities = epsilon / 3 + (1 - epsilon) * (outputs == outputs.max())
    assert_frequencies(action, probabilities)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "pqn"])
def test_frequencies_of_masked_elements(algorithm: str, tmp_path: Path) -> None:
    """An element without an allowed choice is uniform, as in training."""
    run = perturbed_run(
        tmp_path / "run", env="MaskedTeam-v0", hidden=(8,), algorithm=algorithm, policies={"hiker": "random"}
    )
    export_policies(run, tmp_path / "policy.onnx", sampled=True)
    (tmp_path / "policy-walker.onnx").rename(tmp_path / "policy.onnx")
    numbers = np.random.default_rng(0)
    row = {
        "observation": numbers.random((1, 7)).astype(np.float32),
        "action_mask": np.array([[1, 0, 1, 0, 0]], np.int8),
    }
    action, outputs = draws(tmp_path, row, numbers.random((DRAWS, 5)))
    assert action.shape == (DRAWS, 2)
    probabilities = np.exp(outputs[:3]) * [1, 0, 1] / (np.exp(outputs[:3]) * [1, 0, 1]).sum()
    if algorithm == "pqn":
        epsilon = float(last_checkpoint(run)["learners"]["walker"]["epsilon"])
        probabilities = np.array([epsilon / 2, 0, epsilon / 2])
        probabilities[0 if outputs[0] >= outputs[2] else 2] += 1 - epsilon
    assert_frequencies(action[:, 0] - 2, probabilities)  # the space starts at 2
    assert_frequencies(action[:, 1], np.array([0.5, 0.5]))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "sac", "td3", "ddpg"])
def test_distribution_of_box_actions(algorithm: str, tmp_path: Path) -> None:
    run = perturbed_run(tmp_path / "run", **PENDULUM, algorithm=algorithm, initial_std=0.2)
    export_policies(run, tmp_path / "policy.onnx", sampled=True)
    numbers = np.random.default_rng(0)
    row = {"observation": np.array([[0.9, 0.1, 0.2]], np.float32)}
    noise = numbers.standard_normal((DRAWS, 1))
    action, (mean,) = draws(tmp_path, row, noise)
    policies = load_policies(run, device="cpu")
    networks: Any = policies.networks["agent"]
    outputs = reference_outputs(networks, torch.tensor(row["observation"]))[0][0].numpy()
    algorithm_settings: Any = policies.config.algorithm
    normal = {
        "ppo": lambda: mean + np.exp(outputs[1]) * noise,
        "sac": lambda: np.tanh(mean + np.exp(np.clip(outputs[1], -5, 2)) * noise),
        "td3": lambda: np.tanh(mean) + algorithm_settings.noise * noise,
        "ddpg": lambda: np.tanh(mean) + algorithm_settings.noise * noise,
    }[algorithm]()
    expected = 2.0 * np.clip(normal, -1, 1)  # Pendulum's bounds
    assert_near(action, expected, expected)
    assert action.std() > 0.05
    assert abs(action.mean() - expected.mean()) < 5 * expected.std() / DRAWS**0.5


# --- weights ---


def test_weights_are_the_same_policies(cartpole: Path) -> None:
    weights, run = cartpole / "policy.safetensors", cartpole / "run"
    results = [evaluate(source, episodes=20, device="cpu", greedy=False)["agent"] for source in (weights, run)]
    assert np.array_equal(results[0].returns, results[1].returns)
    loaded, trained = (load_policies(source, device="cpu") for source in (weights, run))
    assert (loaded.steps, loaded.seed, loaded.config) == (trained.steps, trained.seed, trained.config)
    env = loaded.make(8)
    observations, _ = env.reset(seed=0)
    actions = [each.acting_in(env, greedy=False)(observations).clone() for each in (loaded, trained)]
    assert torch.equal(*actions)
    card = json.loads((cartpole / "policy.json").read_text())
    assert card["config"] == trained.config.flat() | {"device": card["config"]["device"]}
    assert (card["policies"]["agent"]["features"], card["policies"]["agent"]["sizes"]) == (4, [2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {**CARTPOLE, "algorithm": "pqn"},
        {**PENDULUM, "algorithm": "sac"},
        {"env": GRID, "hidden": (16, 16), "normalise_observations": True},
    ],
    ids=str,
)
def test_weights_of_algorithms_and_teams(settings: dict[str, Any], tmp_path: Path) -> None:
    run, weights = perturbed_run(tmp_path / "run", **settings), tmp_path / "policy.safetensors"
    assert export_policies(run, weights) == [weights, tmp_path / "policy.json"]
    again = tmp_path / "again.safetensors"
    export_policies(weights, again)
    assert again.read_bytes() == weights.read_bytes()
    for role, result in evaluate(run, episodes=8, device="cpu", greedy=False).items():
        other = evaluate(weights, episodes=8, device="cpu", greedy=False)[role]
        assert np.array_equal(result.returns, other.returns)


@pytest.mark.slow
def test_weights_can_be_frozen_opponents(tmp_path: Path) -> None:
    run, weights = perturbed_run(tmp_path / "run", env=GRID, hidden=(8,)), tmp_path / "policy.safetensors"
    export_policies(run, weights)
    both = [
        evaluate(run, episodes=8, device="cpu", policies={"runner": f"frozen:{each}"}, seed=1)
        for each in (run, weights)
    ]
    assert np.array_equal(both[0]["tagger"].returns, both[1]["tagger"].returns)


def test_damaged_weights_are_refused(cartpole: Path, tmp_path: Path) -> None:
    data, path = (cartpole / "policy.safetensors").read_bytes(), tmp_path / "policy.safetensors"
    from safetensors.torch import load, save

    tensors, card = load(data), json.loads((cartpole / "policy.json").read_text())

    def with_card(**changes: Any) -> bytes:
        return save(tensors, {"gpu_envs": json.dumps(card | changes)})

    smaller = {name: tensor for name, tensor in tensors.items() if "actor.0" not in name}
    contents = (
        (b"", "damaged"),
        (data[:1000], "damaged"),
        (data[: len(data) - 10], "damaged"),
        (b"\xff" * 100, "damaged"),
        (save(tensors), "damaged"),
        (save(tensors, {"gpu_envs": "{"}), "damaged"),
        (with_card(steps="many"), "damaged .*'steps'"),
        (with_card(returns={"agent": "high"}), "damaged .*'windows'"),
        (with_card(format=99), "has format 99"),
        (with_card(config={}), "needs an environment"),
        (save(smaller, {"gpu_envs": json.dumps(card)}), "does not fit"),
        (save({**tensors, "agent:module:log_std": torch.zeros(2)}, {"gpu_envs": json.dumps(card)}), "does not fit"),
    )
    for content, message in contents:
        path.write_bytes(content)
        with pytest.raises((CheckpointError, ValueError), match=message):
            load_policies(path, device="cpu")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_policies(tmp_path / "other.safetensors", device="cpu")
    with pytest.raises(ValueError, match="resume its run directory"):
        resume(cartpole / "policy.safetensors")


@pytest.mark.usefixtures("temporary_registry")
def test_weights_of_another_person_run_no_code(cartpole: Path, tmp_path: Path) -> None:
    from safetensors.torch import load, save

    (tmp_path / "mine.py").write_text("from pathlib import Path\nPath(__file__).with_name('was run').touch()\n")
    card = json.loads((cartpole / "policy.json").read_text())
    card["config"]["env"] = f"{tmp_path / 'mine.py'}:MINE"
    path = tmp_path / "policy.safetensors"
    path.write_bytes(save(load((cartpole / "policy.safetensors").read_bytes()), {"gpu_envs": json.dumps(card)}))
    for use in (load_policies, evaluate, lambda file: export_policies(file, tmp_path / "policy.onnx")):
        with pytest.raises(UntrustedError, match=r"add --trust \(trust=True in Python\)"):
            use(path)
    assert not (tmp_path / "was run").exists()


# --- mistakes ---


@pytest.mark.parametrize("name", ["policy", "policy.pt", "policy.onnx.txt"])
def test_other_names_are_refused(name: str, cartpole: Path) -> None:
    with pytest.raises(ValueError, match=rf"'{name}'; give a name that ends in .onnx or .safetensors"):
        export_policies(cartpole / "run", name)


@pytest.mark.slow
@pytest.mark.parametrize(("library", "extra"), [("onnxruntime", "onnx"), ("onnxscript", "onnx"), ("safetensors",) * 2])
def test_missing_extras_are_named(library: str, extra: str, cartpole: Path, tmp_path: Path) -> None:
    done = run_process(
        "export", str(cartpole / "run"), f"--{extra}", f"policy.{extra}", code=code_without(library), cwd=tmp_path
    )
    assert f"{library!r} is not installed: pip install 'gpu_envs[{extra}]'" in done.stderr
    assert list(tmp_path.iterdir()) == []
