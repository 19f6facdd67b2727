"""Curricula: when stages begin, what they set, and that they resume."""

from pathlib import Path
from typing import Any

import pytest
from harness import assert_same_bits, numpy_of
from trainers import last_checkpoint, rows_of, small_run

torch = pytest.importorskip("torch")

from gpu_envs import Choice, LogUniform, Uniform  # noqa: E402
from gpu_envs.training import RunDirectory, Trainer, resume, train  # noqa: E402
from gpu_envs.training.callbacks import Callback, Curriculum, after_steps, return_above, stages_between  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

EACH = 8 * 16
STAGES = ["uniform:0.1:0.2", "uniform:0.1:0.4", "uniform:0.1:0.8"]


def config_of(device: str, iterations: int = 12, **settings: Any) -> Any:
    given: dict[str, Any] = {"total_steps": EACH * iterations, "params": {"pole_mass": STAGES[0]}, "log_interval": 1}
    return small_run(device, **given | settings)


def stages_of(run: Path) -> list[int]:
    return [int(float(row["curriculum/pole_mass"])) for row in rows_of(run / "log.csv")]


def test_stages_by_steps(tmp_path: Path, device: str) -> None:
    curriculum = Curriculum("pole_mass", STAGES, when=[after_steps(2 * EACH), after_steps(3 * EACH)])
    trainer = Trainer(
        config_of(device), RunDirectory.create(tmp_path / "run", config_of(device)), callbacks=[curriculum]
    )
    trainer.run(progress=False)
    assert stages_of(tmp_path / "run") == [0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]
    assert trainer.horizon_env.env.distributions == {"pole_mass": Uniform(0.1, 0.8)}


def test_stages_by_return_need_episodes_of_the_stage(tmp_path: Path, device: str) -> None:
    """Any return suffices here, but 100 episodes and those that run when a stage begins must have ended in it."""
    run, ended = tmp_path / "run", list[int]()

    class Counter(Callback):
        def on_iteration(self, _trainer: Trainer, report: Any) -> None:
            ended.append(report.ended)

    curriculum = Curriculum("pole_mass", STAGES, when=return_above(1.0))
    train(
        config_of(device, 60, learning_rate=1e-6, run_dir=str(run)), progress=False, callbacks=[Counter(), curriculum]
    )
    stages = stages_of(run)
    first, second = stages.index(1), stages.index(2)
    assert sum(ended[:first]) < 108 <= sum(ended[: first + 1])
    assert sum(ended[first + 1 : second]) < 108 <= sum(ended[first + 1 : second + 1])


def test_numbers_get_a_value_per_replica(device: str) -> None:
    trainer = Trainer(config_of(device), callbacks=[Curriculum("gravity", [9.0, 10.0], when=after_steps(4 * EACH))])
    trainer.run(progress=False)
    assert numpy_of(trainer.horizon_env.env.params["gravity"]).tolist() == [10.0] * 8


def test_a_curriculum_resumes_bit_for_bit(tmp_path: Path, device: str) -> None:
    config = config_of(
        device, 60, learning_rate=1e-6, run_dir=str(tmp_path / "run"), checkpoint_interval=7, keep_checkpoints=9
    )

    def curriculum() -> Curriculum:
        return Curriculum("pole_mass", STAGES, when=return_above(10.0))

    train(config, progress=False, callbacks=[curriculum()])
    rows, whole = rows_of(tmp_path / "run" / "log.csv"), last_checkpoint(tmp_path / "run")
    assert stages_of(tmp_path / "run")[-1] == 2
    for path in RunDirectory.open(tmp_path / "run").checkpoints.paths()[1:]:
        path.unlink()
    resume(tmp_path / "run", progress=False, callbacks=[curriculum()])
    assert rows_of(tmp_path / "run" / "log.csv") == rows
    assert_same_bits({**whole, "seconds": 0}, {**last_checkpoint(tmp_path / "run"), "seconds": 0})


def test_stages_between() -> None:
    assert stages_between("uniform:0:1", Uniform(-1, 3), 3) == [Uniform(0, 1), Uniform(-0.5, 2), Uniform(-1, 3)]
    low, middle, high = stages_between("loguniform:1:10", "loguniform:0.01:1000", 3)
    assert (low, high) == (LogUniform(1, 10), LogUniform(0.01, 1000))
    assert middle.numbers == pytest.approx((0.1, 100))
    assert stages_between(Choice(1, 2), Choice(3, 4), 2) == [Choice(1, 2), Choice(3, 4)]
    refused: tuple[tuple[Any, Any, int], ...] = (
        ("uniform:0:1", "loguniform:1:2", 3),
        ("uniform:0:1", "uniform:0:2", 1),
        (1.0, 2.0, 3),
    )
    for wrong in refused:
        with pytest.raises(ValueError, match="give two distributions of one kind"):
            stages_between(*wrong)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "one stage": ({"stages": STAGES[:1]}, "has 1 stages; give 2 or more"),
    "two kinds": ({"stages": [0.1, "uniform:0.1:0.2"]}, "give only numbers, or only distributions of one kind"),
    "too few conditions": ({"when": [after_steps(1)]}, "3 stages need 2 conditions; got 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_curricula(name: str) -> None:
    given, wrong = WRONG[name]
    with pytest.raises(ValueError, match=wrong):
        Curriculum("pole_mass", given.get("stages", STAGES), given.get("when", after_steps(1)))


def test_a_run_that_cannot_change_the_parameter() -> None:
    trainer = Trainer(config_of("cpu", params={}), callbacks=[Curriculum("pole_mass", STAGES, when=after_steps(1))])
    with pytest.raises(ValueError, match="'pole_mass' has no value per replica"):
        trainer.run(progress=False)
