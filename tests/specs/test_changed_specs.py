"""A spec that changed or moved after a run was trained: the message says what was, what is, and what to do."""

import pickle
import shutil
from pathlib import Path

import pytest

import gpu_envs
from gpu_envs.registry import known as registry

pytest.importorskip("torch")

from gpu_envs.errors import CheckpointError
from gpu_envs.training import Config, RunDirectory, evaluate, train

pytestmark = pytest.mark.usefixtures("forgets")

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


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(RULES)
    return path


@pytest.fixture(name="run")
def _run(tmp_path: Path, file: Path) -> Path:
    folder = tmp_path / "run"
    train(
        Config(env=f"{file}:MINE", num_envs=4, horizon=4, total_steps=16, device="cpu", run_dir=str(folder)),
        progress=False,
    )
    return folder


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Knows no more than a process that begins."""
    for table in (registry.SPECS, registry.ORIGINS):
        monkeypatch.delitem(table, "Moving-v0")
    monkeypatch.setattr(registry, "PICKLED", {})


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ("FEATURES, ACTIONS = 5, 2", "its features were 3 and are 5 now"),
        ("FEATURES, ACTIONS = 3, 4", "its actions were 2 and are 4 now"),
    ],
)
def test_a_changed_space(run: Path, file: Path, now: str, said: str) -> None:
    file.write_text(RULES.replace("FEATURES, ACTIONS = 3, 2", now))
    with pytest.raises(CheckpointError, match=said) as caught:
        evaluate(run, episodes=4, device="cpu")
    assert "Missing key" not in str(caught.value)
    assert "size mismatch" not in str(caught.value)


def test_a_run_whose_spec_moved(run: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = file.with_name("yours.py")
    shutil.move(file, elsewhere)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*run.config\.json has it, as 'env': write the new"):
        evaluate(run, episodes=4, device="cpu")
    forget(monkeypatch)
    config = run / "config.json"
    config.write_text(config.read_text().replace("mine.py", "yours.py"))
    assert evaluate(run, episodes=4, device="cpu", trust=True)["agent"].episodes >= 4
    assert RunDirectory.open(run).config().env.endswith("yours.py:MINE")


def test_a_pickle_whose_spec_moved(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = pickle.dumps(gpu_envs.make(f"{file}:MINE", device="cpu"))
    elsewhere = file.with_name("yours.py")
    shutil.move(file, elsewhere)
    forget(monkeypatch)
    with pytest.raises(FileNotFoundError, match=r"no file .*call gpu_envs\.spec\('new/place\.py:MINE'\) first"):
        pickle.loads(kept)
    gpu_envs.spec(f"{elsewhere}:MINE")
    assert pickle.loads(kept).num_envs == 1
