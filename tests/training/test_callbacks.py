"""Callbacks: when they are called, what they may change, and that runs with them resume bit for bit."""

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits, numpy_of
from ranks import run_ranks
from trainers import FIELD, FIELD_PARAMS, GRID, call_after, last_checkpoint, rows_of, small_run

torch = pytest.importorskip("torch")

from gpu_envs import Uniform  # noqa: E402
from gpu_envs.errors import CheckpointError  # noqa: E402
from gpu_envs.training import Callback, Network, RunDirectory, Trainer, resume, train  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

ITERATIONS = 12
STEPS = 8 * 16 * ITERATIONS
DRAWN = {"pole_mass": "uniform:0.05:0.4"}


class Recorder:
    """Notes all calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_start(self, trainer: Trainer) -> None:
        self.calls.append(("start", trainer.iteration))

    def on_iteration(self, trainer: Trainer, report: Any) -> None:
        self.calls.append(("iteration", report.iteration, trainer.iteration))

    def on_evaluation(self, _trainer: Trainer, evaluations: Any) -> None:
        self.calls.append(("evaluation", evaluations["agent"].episodes))

    def on_checkpoint(self, _trainer: Trainer, path: Path) -> None:
        assert path.is_file()
        self.calls.append(("checkpoint", path.stem))

    def on_end(self, _trainer: Trainer, result: Any) -> None:
        self.calls.append(("end", result.reason))


class Changer(Callback):
    """Changes as much as a callback may, by what it has seen; its state is a number."""

    parameters = ("gravity",)

    def __init__(self) -> None:
        self.total = 0.0

    def on_iteration(self, trainer: Trainer, report: Any) -> str | None:
        self.total += report["length"] if report["length"] == report["length"] else 1.0
        trainer.set_params(gravity=9 + self.total % 1, pole_mass=Uniform(0.05, 0.1 + self.total % 1))
        trainer.set_schedule("learning_rate", 1e-3 * (1 + self.total % 1))
        trainer.log("total", self.total)
        if report.iteration == 5:
            trainer.log("evaluated", trainer.evaluate(8)["agent"].mean)
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


def config_of(device: str, **settings: Any) -> Any:
    given: dict[str, Any] = {"total_steps": STEPS, "params": DRAWN, "log_interval": 1} | settings
    return small_run(device, **given)


def test_calls_of_a_run(tmp_path: Path, device: str) -> None:
    recorder = Recorder()
    config = config_of(device, run_dir=str(tmp_path / "run"), checkpoint_interval=5, log_interval=4)
    train(config, progress=False, callbacks=[recorder])
    iterations = [("iteration", k, k + 1) for k in range(1, ITERATIONS)]
    iterations.append(("iteration", ITERATIONS, ITERATIONS))
    assert [call for call in recorder.calls if call[0] == "iteration"] == iterations
    names = [call for call in recorder.calls if call[0] != "iteration"]
    saved = [("checkpoint", f"iteration-{k:08d}") for k in (5, 10, ITERATIONS)]
    assert names == [("start", 0), *saved, ("end", "total_steps")]
    assert recorder.calls.index(saved[0]) == 1 + recorder.calls.index(("iteration", 4, 5))


def test_reports_have_the_figures_of_the_log(tmp_path: Path, device: str) -> None:
    reports: list[dict[str, float]] = []

    class Reader(Callback):
        def on_iteration(self, _trainer: Trainer, report: Any) -> None:
            reports.append({"iteration": report.iteration, "steps": report.steps, **report})

    train(config_of(device, run_dir=str(tmp_path / "run")), progress=False, callbacks=[Reader()])
    rows = rows_of(tmp_path / "run" / "log.csv")
    assert len(rows) == len(reports) == ITERATIONS
    for row, report in zip(rows, reports, strict=True):
        assert set(row) <= set(report)
        assert {name: float(cell) for name, cell in row.items()} == pytest.approx(
            {name: report[name] for name in row}, rel=0, abs=0, nan_ok=True
        )


def test_the_current_report_and_wrong_names(tmp_path: Path, device: str) -> None:
    seen: list[tuple[int, int, int]] = []

    class Impatient(Callback):
        def on_iteration(self, _trainer: Trainer, report: Any) -> None:
            seen.append((report.iteration, report.current.iteration, report.current.current.iteration))
            with pytest.raises(KeyError, match=r"there is no 'retrun'. Did you mean 'return'"):
                report["retrun"]
            assert report.get("retrun") is None

    train(config_of(device, run_dir=str(tmp_path / "run")), progress=False, callbacks=[Impatient()])
    assert seen == [(k, min(k + 1, ITERATIONS), min(k + 1, ITERATIONS)) for k in range(1, ITERATIONS + 1)]
    columns = (tmp_path / "run" / "log.csv").read_text().splitlines()[0].split(",")
    assert "callback_wait_seconds" in columns


@pytest.mark.parametrize("cut", [3, 8])
def test_runs_with_callbacks_resume_bit_for_bit(cut: int, tmp_path: Path, device: str) -> None:
    runs = [tmp_path / name for name in ("whole", "cut")]
    for run in runs:
        config = config_of(device, run_dir=str(run), checkpoint_interval=5)
        folder = RunDirectory.create(str(run), config)
        trainer = Trainer(config, folder, callbacks=[Changer()])
        if run is runs[1]:
            call_after(trainer, cut, lambda: os.kill(os.getpid(), signal.SIGINT))
            assert trainer.run(progress=False).reason == "interrupted"
            assert resume(run, progress=False, callbacks=[Changer()]).reason == "total_steps"
        else:
            assert trainer.run(progress=False).reason == "total_steps"
    rows = [rows_of(run / "log.csv") for run in runs]
    assert rows[0] == rows[1]
    whole, broken = ({**last_checkpoint(run), "seconds": 0} for run in runs)
    for each in (whole, broken):
        each["held"] = each["recent"] = []
    assert_same_bits(whole, broken)
    assert whole["callbacks"]["Changer"]["total"] > 0
    assert len({row["learning_rate"] for row in rows[0]}) > ITERATIONS // 2


def test_a_killed_run_with_callbacks_resumes_bit_for_bit(tmp_path: Path, device: str) -> None:
    """A killed process leaves its last checkpoint, and a log with later rows."""
    run = tmp_path / "run"
    config = config_of(device, run_dir=str(run), checkpoint_interval=5, keep_checkpoints=9)
    train(config, progress=False, callbacks=[Changer()])
    rows, whole = rows_of(run / "log.csv"), last_checkpoint(run)
    for path in RunDirectory.open(run).checkpoints.paths()[1:]:
        path.unlink()
    assert last_checkpoint(run)["iteration"] == 5
    resume(run, progress=False, callbacks=[Changer()])
    assert rows_of(run / "log.csv") == rows
    assert_same_bits({**whole, "seconds": 0}, {**last_checkpoint(run), "seconds": 0})


def test_changes_do_not_wait_for_the_device(device: str) -> None:
    if device == "cpu":
        pytest.skip("needs a CUDA device")
    trainer = Trainer(config_of(device), callbacks=[Changer()])
    trainer.iterate(1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.set_params(gravity=9.5, pole_mass="uniform:0.1:0.2")
        trainer.set_params(gravity=np.arange(8) + 1.0)
        trainer.set_schedule("learning_rate", 0.25)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    (report,) = trainer.iterate(1)
    assert report.learner_metrics["agent"]["learning_rate"] == 0.25
    assert numpy_of(trainer.horizon_env.env.params["gravity"]).tolist() == list(range(1, 9))


def test_a_resumed_run_without_its_callbacks_warns(tmp_path: Path) -> None:
    train(config_of("cpu", run_dir=str(tmp_path / "run")), progress=False, callbacks=[Changer()])
    with pytest.warns(UserWarning, match="the state of the callbacks Changer, which are not given"):
        resume(tmp_path / "run", progress=False, total_steps=2 * STEPS)


def test_changed_parameters_reach_the_next_but_one_iteration(device: str) -> None:
    """Values per replica change at once, distributions with the next episodes; nothing is compiled again."""
    programs, found = set(), list[Any]()

    class Setter(Callback):
        parameters = ("gravity",)

        def on_iteration(self, trainer: Trainer, report: Any) -> None:
            env = trainer.horizon_env.env
            programs.add(id(env.simulation.program))
            found.append([numpy_of(env.params[name]).copy() for name in ("gravity", "pole_mass")])
            trainer.set_params(gravity=np.arange(8) + report.iteration, pole_mass="uniform:0.3:0.31")

    trainer = Trainer(config_of(device, total_steps=8 * 16 * 40), callbacks=[Setter()])
    trainer.run(progress=False)
    assert len(programs) == 1
    assert [row[0].tolist() for row in found[1:]] == [list(range(k, 8 + k)) for k in range(1, len(found))]
    assert (found[0][1] != found[-1][1]).all()
    assert ((found[-1][1] >= np.float32(0.3)) & (found[-1][1] <= np.float32(0.31))).all()


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "a shared number": (
        {"length": 1.0},
        "'length' has no value per replica.*can change: gravity .*pole_mass .to another",
    ),
    "another kind": (
        {"pole_mass": "normal:0.1:0.01"},
        "is drawn from uniform:0.05:0.4, and can only change to another Uniform",
    ),
    "a number for a distribution": ({"pole_mass": 0.1}, "can only change to another Uniform"),
    "a distribution for a number": ({"gravity": "uniform:9:10"}, "was not drawn from a distribution"),
    "compiled in": ({"kinematics_integrator": "semi-implicit"}, "it is compiled in"),
    "unknown": ({"gravty": 1.0}, "no attribute 'gravty'"),
    "too small": ({"pole_mass": "uniform:-1:0.1"}, "got -1"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_that_are_refused(name: str) -> None:
    given, wrong = CHANGES[name]
    trainer = Trainer(config_of("cpu"), callbacks=[Changer()])
    with pytest.raises(ValueError, match=wrong):
        trainer.set_params(**given)
    trainer.set_params(gravity=9.0)
    trainer.iterate(1)


def test_schedules(device: str) -> None:
    trainer = Trainer(config_of(device, learning_rate="0:0.01,1:0"))
    trainer.iterate(2)
    trainer.set_schedule("learning_rate", "0:0.5,1:0")
    trainer.set_schedule("agent.entropy_weight", 0.25)
    (report,) = trainer.iterate(1)
    assert report.learner_metrics["agent"]["learning_rate"] == pytest.approx(0.5 * (1 - 2 / ITERATIONS))
    with pytest.raises(ValueError, match=r"no schedule 'learning_rat'. Did you mean 'learning_rate'"):
        trainer.set_schedule("learning_rat", 1.0)
    with pytest.raises(ValueError, match="has 16 points; during training, give at most 15"):
        trainer.set_schedule("learning_rate", ",".join(f"{k / 15}:0.1" for k in range(16)))


def test_a_reason_stops_the_run(tmp_path: Path, device: str) -> None:
    class Stopper(Recorder):
        def on_iteration(self, trainer: Trainer, report: Any) -> Any:
            super().on_iteration(trainer, report)
            return "seen enough" if report.iteration == 3 else None

    stopper, other = Stopper(), Recorder()
    result = train(config_of(device, run_dir=str(tmp_path / "run")), progress=False, callbacks=[stopper, other])
    assert (result.reason, result.iterations) == ("seen enough", 4)
    assert last_checkpoint(tmp_path / "run")["iteration"] == 4
    for each in (stopper, other):
        assert each.calls[-3:] == [("iteration", 4, 4), ("checkpoint", "iteration-00000004"), ("end", "seen enough")]


def test_an_error_stops_the_run_after_a_checkpoint(tmp_path: Path, device: str) -> None:
    class Broken(Callback):
        def on_iteration(self, _trainer: Trainer, report: Any) -> None:
            if report.iteration == 3:
                raise RuntimeError("out of ideas")

    run = tmp_path / "run"
    with pytest.raises(RuntimeError, match="out of ideas"):
        train(config_of(device, run_dir=str(run)), progress=False, callbacks=[Broken()])
    assert last_checkpoint(run)["iteration"] == 4
    assert resume(run, progress=False).iterations == ITERATIONS


def test_a_callback_saves(tmp_path: Path, device: str) -> None:
    class Saver(Callback):
        def on_iteration(self, trainer: Trainer, report: Any) -> None:
            if report.iteration == 3:
                trainer.save()

    recorder = Recorder()
    train(config_of(device, run_dir=str(tmp_path / "run")), progress=False, callbacks=[Saver(), recorder])
    saved = [call[1] for call in recorder.calls if call[0] == "checkpoint"]
    assert saved == ["iteration-00000004", f"iteration-{ITERATIONS:08d}"]


def test_opponents_are_replaced(tmp_path: Path, device: str) -> None:
    first = config_of(device, env=GRID, params={}, policies={"runner": "random"}, run_dir=str(tmp_path / "first"))
    train(first, progress=False)
    frozen = {"tagger": f"frozen:{tmp_path / 'first'}"}
    trainer = Trainer(config_of(device, env=GRID, params={}, policies=frozen))
    trainer.iterate(1)
    (player,) = trainer.players.values()
    before = player.state()["frozen"]["state"]["module"]
    other = config_of(
        device, env=GRID, params={}, policies={"runner": "random"}, seed=9, run_dir=str(tmp_path / "other")
    )
    train(other, progress=False)
    trainer.replace_opponent("tagger", str(tmp_path / "other"))
    after = player.state()["frozen"]
    assert_same_bits(
        after["state"]["module"], last_checkpoint(tmp_path / "other", trainer.device)["learners"]["tagger"]["module"]
    )
    assert any((after["state"]["module"][name] != before[name]).any() for name in before)
    assert after["source"].endswith("other:tagger")
    trainer.iterate(1)
    with pytest.raises(ValueError, match=r"no frozen policy acts for 'runner'.* act for: tagger"):
        trainer.replace_opponent("runner", "tagger")
    trainer.replace_opponent("tagger", "runner")
    assert_same_bits(player.state()["frozen"]["state"]["module"], trainer.learners["runner"].state()["module"])
    wide = dataclasses.replace(other, network=Network(hidden=(8, 8)), run_dir=str(tmp_path / "wide"))
    train(wide, progress=False)
    with pytest.raises(ValueError, match=r"cannot replace runner of .*: its hidden is \(8, 8\), not \(16, 16\)"):
        trainer.replace_opponent("tagger", str(tmp_path / "wide"))


def test_schedules_after_a_resume(tmp_path: Path) -> None:
    """The last change counts; a setting that the resumed run changes replaces it."""

    class Once(Callback):
        def on_iteration(self, trainer: Trainer, report: Any) -> None:
            if report.iteration == 1:
                for name, value in (("learning_rate", 1e-3), ("agent.learning_rate", 2e-3), ("learning_rate", 3e-3)):
                    trainer.set_schedule(name, value)

    run = tmp_path / "run"
    train(config_of("cpu", run_dir=str(run)), progress=False, callbacks=[Once()])
    resume(run, progress=False, total_steps=2 * STEPS)
    assert float(rows_of(run / "log.csv")[-1]["learning_rate"]) == pytest.approx(3e-3)
    resume(run, progress=False, total_steps=3 * STEPS, learning_rate=5e-5)
    assert float(rows_of(run / "log.csv")[-1]["learning_rate"]) == pytest.approx(5e-5)
    with pytest.raises(ValueError, match="learning_rate"):
        Trainer(config_of("cpu")).set_schedule("learning_rate", -1.0)


def test_changed_parameters_are_known_after_a_resume(tmp_path: Path) -> None:
    class Two(Callback):
        parameters = ("min_acceleration", "max_acceleration")

        def on_iteration(self, trainer: Trainer, report: Any) -> None:
            if report.iteration == 1:
                trainer.set_params(min_acceleration=4.0, max_acceleration=5.0)
            if report.iteration == 5:
                trainer.set_params(min_acceleration=4.5)

    config = config_of(
        "cpu", env=FIELD, params=FIELD_PARAMS, run_dir=str(tmp_path / "run"), checkpoint_interval=3, keep_checkpoints=9
    )
    train(config, progress=False, callbacks=[Two()])
    whole = last_checkpoint(tmp_path / "run")
    for path in RunDirectory.open(tmp_path / "run").checkpoints.paths()[1:]:
        path.unlink()
    resume(tmp_path / "run", progress=False, callbacks=[Two()])
    assert_same_bits(whole["environment"], last_checkpoint(tmp_path / "run")["environment"])


@pytest.mark.parametrize("state", [[1, 2], 3.5, "text", True, None, {"a": {"b": [torch.ones(2)]}}])
def test_any_plain_state_is_restored(state: Any, tmp_path: Path) -> None:
    class Stateful(Callback):
        loaded: Any = "nothing"

        def state_dict(self) -> Any:
            return state

        def load_state_dict(self, loaded: Any) -> None:
            self.loaded = loaded

    train(config_of("cpu", run_dir=str(tmp_path / "run")), progress=False, callbacks=[Stateful()])
    again = Stateful()
    resume(tmp_path / "run", progress=False, total_steps=STEPS + 1, callbacks=[again])
    assert_same_bits({"state": again.loaded}, {"state": state})


def test_a_state_that_cannot_be_saved_is_refused_before_the_first_iteration(tmp_path: Path) -> None:
    class Stateful(Callback):
        def state_dict(self) -> Any:
            return {"seen": {1, 2}}

        def load_state_dict(self, state: Any) -> None:
            raise AssertionError(state)

    with pytest.raises(TypeError, match=r"state_dict of the callback Stateful\['seen'\] is a set"):
        train(config_of("cpu", run_dir=str(tmp_path / "run")), progress=False, callbacks=[Stateful()])


@pytest.mark.parametrize("name", ["", "a\nb", "steps", "return", "kl", "steps_per_second", 3])
def test_names_that_a_log_cannot_have(name: Any) -> None:
    class Logger(Callback):
        def on_iteration(self, trainer: Trainer, _report: Any) -> None:
            trainer.log(name, 1.0)

    with pytest.raises(ValueError, match=r"the name of a column is|already has a column"):
        Trainer(config_of("cpu"), callbacks=[Logger()]).run(progress=False)


def test_a_report_that_nobody_received_is_delivered_after_a_resume(tmp_path: Path) -> None:
    class Broken(Callback):
        def on_iteration(self, _trainer: Trainer, report: Any) -> None:
            if report.iteration == 3:
                raise RuntimeError("out of ideas")

    run, recorder = tmp_path / "run", Recorder()
    with pytest.raises(RuntimeError, match="out of ideas"):
        train(config_of("cpu", run_dir=str(run)), progress=False, callbacks=[Broken()])
    resume(run, progress=False, callbacks=[recorder])
    assert [call[1] for call in recorder.calls if call[0] == "iteration"] == list(range(4, ITERATIONS + 1))


@pytest.mark.parametrize("method", ["run", "iterate"])
def test_callbacks_cannot_train(method: str) -> None:
    class Nested(Callback):
        def on_iteration(self, trainer: Trainer, _report: Any) -> None:
            getattr(trainer, method)(*[1] * (method == "iterate"))

    with pytest.raises(RuntimeError, match="a callback cannot call run or iterate"):
        Trainer(config_of("cpu"), callbacks=[Nested()]).run(progress=False)


def test_all_opponents_of_a_role_are_replaced(tmp_path: Path) -> None:
    for name, seed in (("first", 1), ("other", 2)):
        train(
            config_of(
                "cpu", env=GRID, params={}, policies={"runner": "random"}, seed=seed, run_dir=str(tmp_path / name)
            ),
            progress=False,
        )
    frozen = {f"tagger_{k}": f"frozen:{tmp_path / 'first'}{':tagger' * k}" for k in range(2)}
    trainer = Trainer(config_of("cpu", env=GRID, params={}, policies=frozen))
    trainer.replace_opponent("tagger", str(tmp_path / "other"))
    weights = last_checkpoint(tmp_path / "other")["learners"]["tagger"]["module"]
    assert len(trainer.players) == 2
    for player in trainer.players.values():
        assert_same_bits(player.state()["frozen"]["state"]["module"], weights)
    before = {name: player.state() for name, player in trainer.players.items()}
    cartpole = config_of("cpu", params={}, run_dir=str(tmp_path / "cartpole"))
    train(cartpole, progress=False)
    with pytest.raises((ValueError, CheckpointError)):
        trainer.replace_opponent("tagger", str(tmp_path / "cartpole"))
    assert_same_bits(before, {name: player.state() for name, player in trainer.players.items()})
    with pytest.raises(ValueError, match=r"'runnr' is neither a policy that learns in this run. Did you mean 'runner'"):
        trainer.replace_opponent("tagger", "runnr")


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a class": (lambda: Recorder, "Recorder is a class; give an object, such as Recorder()"),
    "a misspelled method": (
        type("Mine", (), {"on_iterations": print}),
        "'on_iterations'. Did you mean 'on_iteration'",
    ),
    "no method": (lambda: 3, "3 is no callback: it has none of the methods on_start"),
    "a text": (type("Mine", (Recorder,), {"parameters": "gravity"}), "is a text; give a tuple of names, such as"),
    "half a state": (type("Mine", (Recorder,), {"state_dict": None}), "needs both state_dict and load_state"),
}


@pytest.mark.parametrize("name", WRONG)
def test_objects_that_are_no_callbacks(name: str) -> None:
    make, wrong = WRONG[name]
    with pytest.raises(TypeError, match=wrong):
        Trainer(config_of("cpu"), callbacks=[make()])


def test_a_wrong_result_and_parameter() -> None:
    class Wrong(Callback):
        def on_iteration(self, _trainer: Trainer, _report: Any) -> Any:
            return False

    with pytest.raises(TypeError, match="returned False; return None to continue, or a string"):
        Trainer(config_of("cpu"), callbacks=[Wrong()]).run(progress=False)
    unknown = Changer()
    unknown.parameters = ("gravty",)
    with pytest.raises(
        ValueError, match=r"a callback's parameters: CartPole-v1 has no parameter 'gravty'. Did you mean"
    ):
        Trainer(config_of("cpu"), callbacks=[unknown])


def stopped_together(group: Any, device: str, folder: Path) -> list[Any]:
    """Train with a callback that stops, saves or fails in the second process only."""
    found = []
    for name in ("stop", "save", "fail"):

        class Second(Recorder):
            def on_iteration(self, trainer: Trainer, report: Any, kind: str = name) -> Any:
                super().on_iteration(trainer, report)
                if trainer.is_main or report.iteration < 3:
                    return None
                if kind == "fail":
                    trainer.save()
                    raise RuntimeError("out of ideas")
                if kind == "save" and report.iteration == 3:
                    trainer.save()
                return "enough" if kind == "stop" else None

        second = Second()
        try:
            config = config_of(device, run_dir=str(folder / name))
            found.append((train(config, progress=False, callbacks=[second], group=group).reason, second.calls[-1]))
        except RuntimeError as error:
            found.append((str(error), second.calls[-1]))
    return found


def test_several_processes_stop_and_save_at_the_same_iteration(tmp_path: Path) -> None:
    first, second = run_ranks(2, stopped_together, tmp_path / "ranks", tmp_path)
    assert [reason for reason, _ in first] == ["enough", "total_steps", "RuntimeError: out of ideas"]
    assert [reason for reason, _ in second] == ["enough", "total_steps", "out of ideas"]
    done = {name: last_checkpoint(tmp_path / name)["iteration"] for name in ("stop", "fail")}
    assert 4 <= done["stop"] == done["fail"] < ITERATIONS // 2
    saved = [path.stem for path in RunDirectory.open(tmp_path / "save").checkpoints.paths()]
    assert saved == [f"iteration-{done['stop']:08d}", f"iteration-{ITERATIONS // 2:08d}"]


class Setter(Callback):
    """Sets parameters once, and notes them at the start."""

    parameters = ("gravity",)

    def on_start(self, trainer: Trainer) -> None:
        env = trainer.horizon_env.env
        self.found = numpy_of(env.params["gravity"]).tolist(), dict(env.distributions)

    def on_iteration(self, trainer: Trainer, report: Any) -> None:
        if report.iteration == 1:
            trainer.set_params(gravity=5.0, pole_mass="uniform:0.3:0.31")


def trained_with_changes(group: Any, device: str, folder: Path) -> None:
    train(config_of(device, run_dir=str(folder / "run")), progress=False, callbacks=[Setter()], group=group)


def test_changed_parameters_stay_with_another_number_of_processes(tmp_path: Path) -> None:
    run_ranks(2, trained_with_changes, tmp_path / "ranks", tmp_path)
    setter = Setter()
    with pytest.warns(UserWarning, match="trained by 2 processes and is resumed by 1"):
        resume(tmp_path / "run", progress=False, total_steps=2 * STEPS, callbacks=[setter])
    assert setter.found == ([5.0] * 8, {"pole_mass": Uniform(0.3, 0.31)})
