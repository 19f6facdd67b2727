"""A spec that changed or moved after a run was trained: the message says what was, what is, and what to do."""

import copy
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from harness import assert_same_bits

import gpu_envs
from gpu_envs.registry import known as registry
from gpu_envs.registry import loading

pytest.importorskip("torch")

from gpu_envs.errors import CheckpointError
from gpu_envs.training import Run, RunDirectory, Trainer, evaluate, train

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
    """Knows no more than a process that begins."""
    for table in (registry.SPECS, registry.ORIGINS):
        monkeypatch.delitem(table, "Moving-v0")
    monkeypatch.setattr(registry, "PICKLED", {})
    monkeypatch.setattr(loading, "TEXTS", {})
    for name in [name for name in sys.modules if name.startswith("gpu_envs_file_mine_")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ("FEATURES, ACTIONS = 5, 2", "its features were 3 and are 5 now"),
        ("FEATURES, ACTIONS = 3, 4", "its actions were 2 and are 4 now"),
    ],
)
def test_a_changed_space(run: Path, file: Path, now: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(RULES.replace("FEATURES, ACTIONS = 3, 2", now))
    forget(monkeypatch)
    with pytest.raises(CheckpointError, match=said) as caught:
        evaluate(run, episodes=4, device="cpu", trust=True)
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


def with_header(file: Path) -> Path:
    """Lets the spec of a file have its rules in a header."""
    file.write_text(RULES.replace("Rules(reset=reset, step=step, observe=observe)", '"mine.cuh"'))
    header = file.with_name("mine.cuh")
    header.write_text(HEADER)
    return header


def edit(rules: Path) -> None:
    """Makes steps longer, and moves all lines."""
    rules.write_text("\n\n" + rules.read_text().replace("0.1", "0.7"))


@pytest.mark.parametrize("kind", ["functions", "header"])
def test_an_environment_keeps_the_rules_that_it_was_made_of(
    kind: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies and forks too, and one that compiles again; environments that another process makes have the edited."""
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


def test_functions_are_translated_as_they_were_imported(file: Path) -> None:
    """With those that they call, though their file was edited before the first environment was made."""
    calling = RULES.replace("0.1 if action == 1 else -0.1", "pace(action)")
    file.write_text(
        calling.replace(
            "def step", "def pace(action: int) -> float:\n    return 0.1 if action == 1 else -0.1\n\n\ndef step"
        )
    )
    spec = gpu_envs.spec(f"{file}:MINE")
    edit(file)
    env = gpu_envs.make(spec, 4, device="cpu")
    before, _ = env.reset(seed=0)
    after = env.step(np.ones(4, np.int64))[0]
    np.testing.assert_allclose(after - before, 0.1, rtol=1e-5)


@pytest.mark.parametrize("kind", ["functions", "header"])
def test_a_trainer_evaluates_under_the_rules_that_it_trains_under(kind: str, file: Path) -> None:
    rules = with_header(file) if kind == "header" else file
    trainer = Trainer(Run(env=f"{file}:MINE", num_envs=4, horizon=4, total_steps=16, device="cpu"))
    before = trainer.evaluate(episodes=4)
    edit(rules)
    assert trainer.evaluate(episodes=4) == before
