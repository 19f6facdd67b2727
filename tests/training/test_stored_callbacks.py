"""Callbacks that are settings of a run: on the command line, in files, in run directories, and when they need trust."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from trainers import last_checkpoint, small_run

torch = pytest.importorskip("torch")

from gpu_envs.cli import OK, main  # noqa: E402
from gpu_envs.errors import UntrustedError  # noqa: E402
from gpu_envs.replays import RecordReplays  # noqa: E402
from gpu_envs.training import Run, RunDirectory, Trainer, evaluate, load_settings, resume, train  # noqa: E402
from gpu_envs.training.callbacks import KeepBest  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

ROLLOUT = 8 * 16
WORDS = ("--preset=none", "--num-envs=8", "--horizon=16", "--minibatches=2", f"--total-steps={ROLLOUT * 12}")
TRAIN = ("train", "CartPole-v1", *WORDS, "--device=cpu", "--run-dir=run", "--no-progress")
MINE = """
class Stopper:
    def __init__(self, at=3):
        self.at = at

    def on_iteration(self, trainer, report):
        return "seen enough" if report.iteration == self.at else None


later = Stopper(5)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with callbacks in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPU_ENVS_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_command_line(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run makes its callbacks again when it is resumed; others are added."""
    assert main([*TRAIN, "--callback", "mine.py:Stopper"]) == OK
    assert "seen enough" in capsys.readouterr().out
    assert main(["train", "--resume", "run", "--no-progress", "--callback", "mine.py:later"]) == OK
    assert last_checkpoint("run")["iteration"] == 6
    assert RunDirectory.open("run").config().callbacks == (f"{mine}:Stopper", f"{mine}:later")
    for place, wrong in {
        "mine.py": "names no object; give path/to/file.py:NAME",
        "mine.py:Stoper": "mine.py has no 'Stoper'. Did you mean 'Stopper'",
        "nowhere.py:X": "there is no file",
    }.items():
        assert main([*TRAIN[:-2], "--run-dir=other", "--callback", place]) == 2
        assert wrong in capsys.readouterr().err
        assert not Path("other").exists()


def test_settings_files(mine: Path) -> None:
    """run.toml names them; in Python a text among the callbacks of ``train`` becomes a setting, too."""
    train(small_run("cpu", run_dir="run", total_steps=ROLLOUT * 9), callbacks=["mine.py:later"], progress=False)
    loaded = load_settings("run/run.toml")
    assert loaded.callbacks == (f"{mine}:later",)
    trainer = Trainer(loaded)
    assert trainer.run(progress=False).reason == "seen enough"
    with pytest.raises(ValueError, match=r"callbacks is 'mine.py:later'; give a list of texts"):
        Run(env="CartPole-v1", callbacks="mine.py:later")  # type: ignore[arg-type]


def test_a_file_that_is_not_trusted(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of environments: a run directory of others may name any file. A file that trained here and has not changed is
    trusted."""
    train(small_run("cpu", run_dir="run", total_steps=ROLLOUT * 9), callbacks=["mine.py:Stopper"], progress=False)
    resume("run", progress=False, total_steps=ROLLOUT * 10)
    mine.write_text(MINE + "raise SystemExit('it has run')\n")
    with pytest.raises(UntrustedError, match=r"the callback .*mine.py:Stopper \(the file has changed"):
        resume("run", progress=False, total_steps=ROLLOUT * 11)
    evaluate("run", episodes=2, progress=False)  # which needs no callbacks
    assert main(["train", "--config", "run/run.toml", "--no-progress"]) == 2
    assert "names the callback" in capsys.readouterr().err
    mine.write_text(MINE.replace("3", "1"))
    with pytest.warns(UserWarning, match="has changed since it was imported"):
        assert resume("run", progress=False, total_steps=ROLLOUT * 11, trust=True).iterations == 11


def test_code_of_others_does_not_run(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run directory may name any function of an installed module, or a file that does not exist."""
    train(small_run("cpu", run_dir="run", total_steps=ROLLOUT), progress=False)
    config = Path("run/config.json")
    for place, wrong in {
        "pytest:main": "names the callback pytest:main, and making it runs code of",
        "no.py:X": "does not exist",
    }.items():
        about = json.loads(config.read_text())
        config.write_text(json.dumps(about | {"config": {**about["config"], "callbacks": [place]}}))
        assert main(["train", "--resume", "run", f"--total-steps={ROLLOUT * 2}", "--no-progress"]) == 2
        assert wrong in capsys.readouterr().err
    words = ["train", "--resume", "run", f"--total-steps={ROLLOUT * 2}", "--no-progress", "--callback=none"]
    assert main([*words, "--callback", "mine.py:later"]) == OK
    assert (
        main(["train", "--resume", "run", f"--total-steps={ROLLOUT * 3}", "--no-progress"]) == OK
    )  # it is trusted now
    assert RunDirectory.open("run").config().callbacks == (f"{mine}:later",)
    Path("settings.toml").write_text('env = "CartPole-v1"\ncallbacks = 3\n')
    assert main(["train", "--config", "settings.toml"]) == 2
    assert "callbacks is 3; give a list of texts" in capsys.readouterr().err


def test_keep_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``best`` has the checkpoint with the highest return, and is itself a run directory, also after a resumption."""
    monkeypatch.chdir(tmp_path)
    means: dict[int, float] = {}

    class Means:
        def on_iteration(self, trainer: Trainer, report: Any) -> None:
            if report.iteration == 60:
                trainer.set_schedule("learning_rate", 1.0)  # the policy becomes bad

        def on_checkpoint(self, trainer: Trainer, path: Path) -> None:  # noqa: ARG002
            if not math.isnan(trainer.history.target_mean):
                means[trainer.iteration] = trainer.history.target_mean

    config = small_run("cpu", run_dir="run", total_steps=ROLLOUT * 70, checkpoint_interval=6, keep_checkpoints=1)
    config = dataclasses.replace(config, algorithm=dataclasses.replace(config.algorithm, learning_rate=0.003))
    train(config, callbacks=["gpu_envs.training.callbacks:KeepBest", Means()], progress=False)
    resume("run", progress=False, total_steps=ROLLOUT * 100, callbacks=[Means()])
    best = max(means, key=lambda iteration: means[iteration])
    assert 30 < best < 90
    assert json.loads(Path("run/best/best.json").read_text()) == {"iteration": best, "return": means[best]}
    assert last_checkpoint("run/best")["iteration"] == best
    assert [path.name for path in Path("run/best/checkpoints").iterdir()] == [f"iteration-{best:08d}.pt"]
    assert evaluate("run/best", episodes=50, progress=False)["agent"].episodes == 50


def test_the_option_keep_best(tmp_path: Path) -> None:
    assert main([*TRAIN[:-2], f"--run-dir={tmp_path / 'run'}", "--no-progress", "--keep-best"]) == OK
    assert RunDirectory.open(tmp_path / "run").config().callbacks == ("gpu_envs.training.callbacks:KeepBest",)


def test_recording_changes_nothing(device: str, tmp_path: Path) -> None:
    """A run that records its policies learns the same; a replay shows what an evaluation at that time plays."""
    results = {}
    for name, callbacks in (("with", [RecordReplays(every=3, replicas=2, greedy=False)]), ("without", [])):
        config = small_run(device, run_dir=str(tmp_path / name), total_steps=ROLLOUT * 8)
        train(config, callbacks=callbacks, progress=False)
        results[name] = last_checkpoint(tmp_path / name)["learners"]["agent"]["module"]
    assert all(torch.equal(results["with"][key], weights) for key, weights in results["without"].items())
    pages = sorted(path.name for path in (tmp_path / "with" / "replays").iterdir())
    assert pages == [f"iteration-0000000{n}.html" for n in (4, 7, 8)]


@pytest.mark.parametrize(
    ("options", "message"), [({"suffix": ".avi"}, "give .html, .mp4 or .gif"), ({"every": -1}, "every is -1")]
)
def test_wrong_options_of_replays(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RecordReplays(**options)


def test_keep_best_needs_a_run_directory() -> None:
    """Without one it does nothing."""
    Trainer(small_run("cpu", total_steps=ROLLOUT), callbacks=[KeepBest()]).run(progress=False)
