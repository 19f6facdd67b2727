"""A spec that changed or moved after a run was trained: messages name the old spec, the new one and the fix."""

import copy
import inspect
import pickle
import shutil
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits

import gpu_envs
from gpu_envs.registry import catalog as registry
from gpu_envs.registry import loading

pytest.importorskip("torch")

from gpu_envs.errors import CheckpointError
from gpu_envs.training import Run, RunDirectory, Trainer, evaluate, train

pytestmark = pytest.mark.usefixtures("temporary_registry")

RULES = """
import numpy as np
from gymnasium.spaces import Box, Discrete
from gpu_envs import EnvSpec, Param, Rules


def reset(s, p, random):
    s.x = random.uniform(-1.0, 1.0)


def step(s, p, action, random):
    s.x += 0.1 if action == 1 else -0.1
    return -abs(s.x), abs(s.x) > 2.0


def observe(s, p, observation):
    for j in range(FEATURES):
        observation[j] = s.x


FEATURES, ACTIONS = 3, 2
MINE = EnvSpec(
    id="Moving-v0", header=Rules(reset=reset, step=step, observe=observe), state=("x",), params={},
    observation=Box(-np.inf, np.inf, (FEATURES,), np.float32), action=Discrete(ACTIONS), max_episode_steps=9,
)
"""


HEADER = """
FN void reset(State& s, const Params& p, Random& random) { s.x = random.uniform(real(-1), real(1)); }
FN Outcome step(State& s, const Params& p, const Action& action, Random& random) {
    s.x += action == 1 ? real(0.1) : real(-0.1);
    return {-s.x, s.x > real(2)};
}
FN void observe(const State& s, const Params& p, Observation& observation) {
    for (int j = 0; j < 3; ++j) observation[j] = float(s.x);
}
"""


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(RULES)
    return path


@pytest.fixture(name="run")
def _run(tmp_path: Path, file: Path) -> Path:
    folder = tmp_path / "run"
    train(
        Run(env=f"{file}:MINE", num_envs=4, horizon=4, total_steps=16, device="cpu", run_dir=str(folder)),
        progress=False,
    )
    return folder


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clears the registry, as in a new process."""
    for table in (registry.SPECS, registry.ORIGINS):
        monkeypatch.delitem(table, "Moving-v0")
    monkeypatch.setattr(registry, "PICKLED_SPECS", weakref.WeakValueDictionary())
    monkeypatch.setattr(loading, "SOURCE_TEXTS", {})
    for name in [name for name in sys.modules if name.startswith("gpu_envs_file_mine_")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ("FEATURES, ACTIONS = 5, 2", "its features were 3 and are 5 now"),
        ("FEATURES, ACTIONS = 3, 4", "its actions were 2 and are 4 now"),
    ],
)
def test_a_changed_space(run: Path, file: Path, now: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(RULES.replace("FEATURES, ACTIONS = 3, 2", now))
    forget(monkeypatch)
    with pytest.raises(CheckpointError, match=message) as caught:
        evaluate(run, episodes=4, device="cpu", trust=True)
    assert "Missing key" not in str(caught.value)
    assert "size mismatch" not in str(caught.value)


def test_a_run_after_its_spec_moved(run: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = file.with_name("yours.py")
    shutil.move(file, elsewhere)
    with pytest.raises(FileNotFoundError, match=r"mine\.py', does not exist: restore it, or write its new path"):
        evaluate(run, episodes=4, device="cpu")
    forget(monkeypatch)
    config = run / "config.json"
    config.write_text(config.read_text().replace("mine.py", "yours.py"))
    assert evaluate(run, episodes=4, device="cpu", trust=True)["agent"].episodes >= 4
    assert RunDirectory.open(run).config().env.endswith("yours.py:MINE")


def test_a_pickle_after_its_spec_moved(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = pickle.dumps(gpu_envs.make(f"{file}:MINE", device="cpu"))
    elsewhere = file.with_name("yours.py")
    shutil.move(file, elsewhere)
    forget(monkeypatch)
    with pytest.raises(FileNotFoundError, match=r"no file .*call gpu_envs\.spec\('new/path\.py:MINE'\) first"):
        pickle.loads(kept)
    gpu_envs.spec(f"{elsewhere}:MINE")
    assert pickle.loads(kept).num_envs == 1


def with_header(file: Path) -> Path:
    """Moves the rules of a file's spec into a header."""
    file.write_text(RULES.replace("Rules(reset=reset, step=step, observe=observe)", '"mine.cuh"'))
    header = file.with_name("mine.cuh")
    header.write_text(HEADER)
    return header


def edit(rules: Path) -> None:
    """Makes steps larger, and moves all lines."""
    rules.write_text("\n\n" + rules.read_text().replace("0.1", "0.7"))


@pytest.mark.parametrize("kind", ["functions", "header"])
def test_an_environment_keeps_its_rules_after_an_edit(kind: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies, forks and recompiled environments too; environments made in other processes use the edited file."""
    rules = with_header(file) if kind == "header" else file
    file.write_text(file.read_text().replace("params={}", 'params={"k": Param(1.0)}'))
    env = gpu_envs.make(f"{file}:MINE", 2, device="cpu")
    env.reset(seed=0)
    kept, actions = pickle.dumps(env), np.ones(2, np.int64)
    wanted = copy.deepcopy(env).step(actions)[1]
    edit(rules)
    for twin in (env.fork(1), copy.deepcopy(env), pickle.loads(kept)):
        assert_same_bits(twin.step(actions)[1], wanted)
    env.set_attr("k", [1.0, 2.0])
    assert env.simulation.layout.per_replica
    assert_same_bits(env.fork(1).step(actions)[1], wanted)
    forget(monkeypatch)
    later = gpu_envs.make(f"{file}:MINE", 2, device="cpu")
    later.reset(seed=0)
    assert (later.step(actions)[1] != wanted).all()
    assert_same_bits(pickle.loads(kept).step(actions)[1], wanted)


PACE = """
import sys
from gpu_envs.rules import Action

here = sys.modules[__name__]


class Paces:
    @staticmethod
    def pace(action: Action, unit: "float") -> float:
        return half.pace(action, unit) + half.pace(action, unit)


class half:
    @staticmethod
    def pace(action: Action, unit: float) -> float:
        return 0.05 * unit if action == 1 else -0.05 * unit


def pace(action: int, unit: float) -> float:
    return here.Paces.pace(action, unit)
"""


@pytest.mark.parametrize("call", ["pace", "pace_of_mine.pace", "pace_of_mine.here.Paces.pace"])
def test_functions_are_translated_as_imported(call: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Including functions that they call, even if files are edited before the first environment is made."""
    monkeypatch.syspath_prepend(file.parent)
    helper = file.with_name("pace_of_mine.py")
    helper.write_text(PACE)
    calling = RULES.replace("0.1 if action == 1 else -0.1", f"{call}(action, 1.0)")
    file.write_text(f"import pace_of_mine\nfrom pace_of_mine import pace\n{calling}")
    spec = gpu_envs.spec(f"{file}:MINE")
    edit(file)
    helper.write_text("\n\n" + PACE.replace("0.05", "0.35"))
    env = gpu_envs.make(spec, 4, device="cpu")
    before, _ = env.reset(seed=0)
    after = env.step(np.ones(4, np.int64))[0]
    np.testing.assert_allclose(after - before, 0.1, rtol=1e-5)


def test_a_library_is_not_read_ahead(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its functions have no annotations of rules, without which nothing is translated."""
    read, getsourcelines = [], inspect.getsourcelines

    def recorded(function: Any) -> Any:
        read.append(function.__name__)
        return getsourcelines(function)

    monkeypatch.setattr(inspect, "getsourcelines", recorded)
    called = "torch.nn.functional.relu(pytest.approx(action))"
    file.write_text(f"import pytest, torch\n{RULES.replace('0.1 if action == 1 else -0.1', called)}")
    gpu_envs.spec(f"{file}:MINE")
    assert sorted(read) == ["observe", "reset", "step"]


@pytest.mark.parametrize("kind", ["functions", "header"])
def test_a_trainer_evaluates_under_the_rules_that_it_trains_under(kind: str, file: Path) -> None:
    rules = with_header(file) if kind == "header" else file
    trainer = Trainer(Run(env=f"{file}:MINE", num_envs=4, horizon=4, total_steps=16, device="cpu"))
    before = trainer.evaluate(episodes=4)
    edit(rules)
    assert trainer.evaluate(episodes=4) == before
