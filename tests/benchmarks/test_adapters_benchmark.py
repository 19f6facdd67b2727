"""The adapters' benchmark: every section runs at tiny sizes and returns its documented fields."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from harness import HAS_CUDA

import gpu_envs
from benchmarks import record
from benchmarks.adapters import __main__ as adapters
from benchmarks.adapters.plan import AdapterPlan, check_maximum, check_minimum
from benchmarks.adapters.timing import medians, time_in_turns
from benchmarks.pages import adapters as pages
from benchmarks.record import format_short

pytest.importorskip("torch")

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # TorchRL's collectors use its own deprecated functions.
    pytest.mark.filterwarnings("ignore:Creating .*WeightUpdater:DeprecationWarning"),
]


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def plan(lines: list[str]) -> AdapterPlan:
    return AdapterPlan("cpu", quick=True, log=lines.append)


def measured(plan: AdapterPlan, name: str) -> dict[str, Any]:
    """Measures a section; checks that no part failed and that JSON can represent the results."""
    sections: dict[str, Any] = {}
    adapters.measure(plan, [name], sections.__setitem__)
    assert plan.failures == []
    assert list(sections) == [name]
    results: dict[str, Any] = json.loads(json.dumps(sections[name], allow_nan=False))
    return results


def test_sb3_is_compared_with_its_vectorised_environments(
    plan: AdapterPlan, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("stable_baselines3")
    results = measured(plan, "sb3")
    sides = {"gpu_envs_ppo", "stock_ppo", "dummy", "subproc"}
    assert results["num_envs"] == 64
    for kind in ("dummy", "subproc"):
        assert results["peers"][kind]["steps_per_s"] == max(
            rate for rates in results["peers"][kind]["tried"].values() for rate in rates.values()
        )
    for policy in ("fresh", "balancing"):
        part = results["collect_rollouts"][policy]
        assert set(part["steps_per_s"]) == set(part["shares"]) == set(part["torch_threads"]) == sides
        best = max(part["steps_per_s"]["dummy"], part["steps_per_s"]["subproc"])
        assert part["times_the_better_container"]["stock_ppo"] == part["steps_per_s"]["stock_ppo"] / best
        for shares in part["shares"].values():
            assert set(shares) == {"policy", "step_async", "step_wait"}
            assert all(share > 0 for share in shares.values())
            assert sum(shares.values()) < 1
    learn = results["learn"]
    for side in ("ours", "peer"):
        assert learn["num_envs"][side] * learn["n_steps"][side] == learn["equal"]["transitions"] == 512
        assert learn["steps_per_s"][side] > 0
    assert sum("bar >= 10" in line and "bar < 0.05" in line for line in lines) == 4
    monkeypatch.setattr(pages, "results", lambda *_: results)
    rates = [learn["steps_per_s"][side] for side in ("ours", "peer")]
    rates += [part["steps_per_s"][side] for part in results["collect_rollouts"].values() for side in sides]
    assert all(f"| {format_short(rate)}" in pages.sb3(Path()) for rate in rates)


def test_the_scripted_policy_balances() -> None:
    pytest.importorskip("stable_baselines3")
    from benchmarks.adapters.sb3_learning import evaluate
    from benchmarks.peers import sb3_vec

    venv = sb3_vec.environments("dummy", 1)
    model = sb3_vec.Collector(venv).model
    assert evaluate(model, 100, "cpu", 0) < 100
    sb3_vec.balance(model)
    assert evaluate(model, 100, "cpu", 0) == 500
    venv.close()


def test_a_step_of_sb3_is_split(plan: AdapterPlan, lines: list[str]) -> None:
    pytest.importorskip("stable_baselines3")
    results = measured(plan, "sb3_step")
    assert set(results["parts_ms"]) == {"env_step", "fetch", "infos", "other"}
    assert results["ended_per_step"] == pytest.approx(64 * results["finish_rate"])
    assert 1 / 60 < results["finish_rate"] < 1 / 10
    assert results["yardstick"]["bare_step_ms"] > 0
    assert 0 < results["step_ms"] <= results["percentile_95_ms"]
    assert "bar < 1 ms" in lines[0]


def test_the_bytes_of_a_step_of_sb3_are_counted() -> None:
    pytest.importorskip("stable_baselines3")

    from benchmarks.adapters.sb3_step import result_bytes

    env = gpu_envs.make("CartPole-v1", 10, device="cpu", autoreset_mode="SameStep")
    # two observations of 4 floats, reward and return, length, two flags, metrics
    assert result_bytes(env) == 10 * (2 * 16 + 2 * 4 + 4 + 2 + 4 * len(env.env_spec.metrics))
    env.close()


def test_torch_libraries_are_compared_with_their_minimum_cost(
    plan: AdapterPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = measured(plan, "torch_libraries")
    monkeypatch.setattr(pages, "results", lambda *_: section)
    results, table = section["libraries"], pages.libraries(Path())
    ways = {"torchrl": {"rollout", "collector"}, "skrl": {"skrl_ppo", "gpu_envs_ppo"}, "rsl_rl": {"ppo"}}
    assert set(results) == set(ways)
    for library, figures in results.items():
        if "skipped" in figures:
            continue
        assert set(figures["loops"]) == ways[library]
        for loop in figures["loops"].values():
            spared = figures["bare_us"] + loop["yardsticks_us"]["constant"]
            assert loop["overheads"]["constant"] == pytest.approx(loop["ours_us"] / spared - 1)
            assert f"| {loop['ours_us']:,.0f} |" in table


def test_every_library_learns_something(plan: AdapterPlan) -> None:
    results = measured(plan, "learning")["libraries"]
    assert set(results) == {"sb3", "torchrl", "skrl", "rsl_rl"}
    for run in results.values():
        if "skipped" not in run:
            assert run["steps"] > 0
            assert run["seconds"] > 0
            assert math.isfinite(run["evaluated"])
            assert run["evaluated"] < run["target"]  # after so few steps


def test_wrappers_are_measured(plan: AdapterPlan, lines: list[str]) -> None:
    results = measured(plan, "wrappers")
    assert results["torch_threads"] == 1
    (rows,) = results["sizes"].values()
    assert rows["none"]["added_us"] == 0
    assert len(rows) == len(lines) > 1


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.cuda
def test_steps_are_measured_on_the_gpu(lines: list[str]) -> None:
    plan = AdapterPlan("cuda", quick=True, log=lines.append)
    step, metrics = measured(plan, "sb3_step"), len(gpu_envs.spec("CartPole-v1").metrics)
    if "skipped" not in step:
        assert step["yardstick"]["bytes_down"] == 64 * (2 * 16 + 2 * 4 + 4 + 2 + 4 * metrics)
        assert step["yardstick"]["bytes_up"] == 64 * 8
        assert step["transfer_share"] > 0
    assert measured(plan, "torch_libraries")["libraries"]
    assert measured(plan, "wrappers")


def test_missing_libraries_and_failures_do_not_affect_other_sections(
    plan: AdapterPlan, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(_: AdapterPlan) -> dict[str, Any]:
        raise ModuleNotFoundError("no skrl here: pip install it", name="skrl.agents")

    def ours_is_missing(_: AdapterPlan) -> dict[str, Any]:
        raise ModuleNotFoundError("renamed", name="gpu_envs.adapters.x")

    def broken(_: AdapterPlan) -> dict[str, Any]:
        raise ValueError("broken")

    sections = {"a": missing, "b": ours_is_missing, "c": broken, "d": lambda _: {"figure": 1}}
    monkeypatch.setattr(adapters, "SECTIONS", sections)
    written: dict[str, Any] = {}
    adapters.measure(plan, list(sections), written.__setitem__)
    assert written == {
        "a": {"skipped": "no skrl here: pip install it"},
        "b": {"failed": "ModuleNotFoundError: renamed"},
        "c": {"failed": "ValueError: broken"},
        "d": {"figure": 1},
    }
    assert plan.failures == ["b", "c"]
    assert lines == ["a: skipped: no skrl here: pip install it"]
    assert "ValueError: broken" in capsys.readouterr().err


def test_complete_sections_are_written_with_their_provenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(adapters, "SECTIONS", {"sb3": lambda _: {"figure": 1}, "learning": lambda _: {"figure": 2}})
    adapters.main(["--device", "cpu", "--only", "sb3", "--quick"])
    assert json.loads(capsys.readouterr().out) == {"sb3": {"figure": 1}}
    assert not list(tmp_path.iterdir())
    adapters.main(["--device", "cpu", "--only", "sb3", "--commit", "before"])

    def broken(_: AdapterPlan) -> dict[str, Any]:
        raise ValueError("broken")

    monkeypatch.setitem(adapters.SECTIONS, "sb3", broken)
    with pytest.raises(SystemExit, match="failed: sb3"):
        adapters.main(["--device", "cpu", "--only", "sb3", "learning", "--commit", "after"])
    sections = json.loads((tmp_path / "adapters_cpu.json").read_text())["sections"]
    written = {name: (section["results"]["figure"], section["commit"]) for name, section in sections.items()}
    assert written == {"sb3": (1, "before"), "learning": (2, "after")}
    assert all(section["command"].startswith("python -m benchmarks.adapters") for section in sections.values())


def test_rounds_alternate_and_the_first_is_discarded() -> None:
    calls: list[str] = []
    found = time_in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3, lambda: None)
    assert calls == ["a", "b"] * 4
    assert [len(times) for times in found.values()] == [3, 3]
    assert medians({"x": [3.0, 1.0, 2.0]}) == {"x": 2.0}


def test_thresholds() -> None:
    assert check_maximum(0.04, 0.05) == "bar < 0.05: met"
    assert check_maximum(0.05, 0.05) == "bar < 0.05: MISSED"
    assert check_minimum(10.0, 10.0) == "bar >= 10: met"
    assert check_minimum(9.9, 10.0) == "bar >= 10: MISSED"
