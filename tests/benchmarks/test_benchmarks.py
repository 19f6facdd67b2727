"""The benchmarks at small sizes: timing, results, skipped peers, plots."""

import dataclasses
import functools
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness import DEVICES, run_python
from peer_games import assert_same_game

import gpu_envs
from benchmarks import command, record, timing
from benchmarks.custom import __main__ as custom
from benchmarks.pages import comparisons
from benchmarks.pages.tables import percent
from benchmarks.peers import __main__ as peers_main
from benchmarks.peers import process, workloads
from benchmarks.peers.outcome import PeerResults, format_row, format_section, measure_peer, row
from benchmarks.peers.workloads import CARTPOLE, PEERS, SIMPLE_TAG, TAG, Workload
from benchmarks.throughput import __main__ as throughput
from benchmarks.throughput import scaling

ROW = {"task", "way", "device", "cores", "autoreset", "variant", "num_envs", "agents"}
MEASURED = ROW | {"us_per_step", "env_steps_per_s", "agent_steps_per_s", "prepare_s", "ours_env_steps_per_s"}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    return tmp_path


# --- timing ---


class Clock:
    """A clock that advances only in calls: by 1 ms, and by 2 ms more when their results are awaited."""

    def __init__(self) -> None:
        self.now, self.queued, self.numbers = 0.0, 0, list[int]()

    def call(self, number: int) -> None:
        self.numbers.append(number)
        self.now += 1e-3
        self.queued += 1

    def wait(self) -> None:
        self.now += 2e-3 * self.queued
        self.queued = 0


def test_timing_waits_for_queued_calls_and_repeats_slow_calls_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, few = Clock(), Clock()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now + few.now))
    assert timing.seconds_per_call(clock.call, clock.wait, seconds=0.3) == pytest.approx(3e-3)
    assert clock.numbers[:64] == list(range(64))  # the warm-up
    assert clock.now < 1.5  # 0.192 s to warm up, less than 0.3 s to find the number of calls, 0.3 s of rounds
    timing.seconds_per_call(few.call, few.wait, seconds=1e-4)
    assert len(few.numbers) == 2 + 1 + timing.ROUNDS


# --- workloads ---


def all_works() -> list[Workload]:
    return [work for device in ("cpu", "cuda") for peer in PEERS.values() for work in peer.workloads(device)]


def test_workloads_round_trip_through_json() -> None:
    for work in all_works():
        assert Workload.from_json(json.loads(json.dumps(dataclasses.asdict(work)))) == work


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gpu_envs_runs_all_workloads_of_peers(device: str) -> None:
    chosen = peers_main.choose_workloads(peers_main.parser().parse_args([]), device)
    ours = chosen.pop("ours")
    assert len(ours) == len(set(ours))
    assert {work.ours for listed in chosen.values() for work in listed} <= set(ours)
    assert {work.variant for work in ours} == {"", workloads.BARE}
    assert set(chosen) == {name for name, peer in PEERS.items() if device == "cuda" or peer.on_cpu}
    if device == "cpu":
        assert {work.device for work in ours} == {"cpu"}


def test_every_way_is_explained_and_every_peer_is_a_module() -> None:
    assert {work.way for work in all_works()} <= set(workloads.WAYS)
    for peer in PEERS.values():
        assert (Path(workloads.__file__).parent / f"{peer.module}.py").is_file()


# --- a peer's process ---


@pytest.fixture
def peer_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Returns a function that makes a peer from a script, which has ``works`` and prints lines with ``say``."""
    folder = tmp_path / "benchmarks" / "peers"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    monkeypatch.setattr(process, "ROOT", tmp_path)
    head = "import json, os, sys, time\nworks = json.loads(sys.argv[2])\n"
    head += "def say(line):\n    print(json.dumps(line), flush=True)\n"

    def make(script: str) -> str:
        (folder / "scripted.py").write_text(head + textwrap.dedent(script))
        return "scripted"

    return make


ONE, OTHER = Workload(CARTPOLE, "host", "cpu", 4), Workload(CARTPOLE, "host", "cpu", 8)


def test_a_hanging_peer_keeps_its_results(peer_module: Callable[[str], str], tmp_path: Path) -> None:
    """The peer and its child process are killed."""
    module = peer_module(f"""
        import subprocess
        child = subprocess.Popen(["sleep", "600"])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
        say({{"versions": {{"python": "9"}}}})
        print("a library's own words")
        say({{"work": 0, "seconds": 0.5, "prepare_s": 1.0}})
        time.sleep(600)
    """)
    peer = workloads.Peer("Slow", module, {}, lambda _: [ONE, OTHER])
    outcome = measure_peer(sys.executable, peer, [ONE, OTHER], 0.1, 3.0)
    assert outcome.versions == {"python": "9"}
    assert outcome.lines == {ONE: {"work": 0, "seconds": 0.5, "prepare_s": 1.0}}
    assert outcome.errors == ["stopped after 3 s"]
    assert Path("/proc/self/stat").exists()
    state = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    until = time.monotonic() + 10  # a killed process ends when it is next scheduled
    while state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)


LINE = '"seconds": 0.5, "prepare_s": 1.0'


@pytest.mark.parametrize(
    ("script", "separate_processes", "done", "trouble"),
    [
        (f'say({{"work": 1, {LINE}}})\nos.abort()', False, [OTHER], "-6: no output"),
        ("import no_such_module", False, [], "1: ModuleNotFoundError: No module named 'no_such_module'"),
        # workloads in separate processes: a failure does not affect the others
        (
            f'(it,) = works\nsys.exit("few" if it["num_envs"] == 4 else say({{"work": 0, {LINE}}}))',
            *(True, [OTHER], "1: few"),
        ),
    ],
)
def test_a_failing_peer_reports_its_error(
    script: str, separate_processes: bool, done: list[Workload], trouble: str, peer_module: Callable[[str], str]
) -> None:
    peer = workloads.Peer(
        "Failing", peer_module(script), {}, lambda _: [ONE, OTHER], separate_processes=separate_processes
    )
    outcome = measure_peer(sys.executable, peer, [ONE, OTHER], 0.1, 60.0)
    assert list(outcome.lines) == done
    assert outcome.errors == [f"ended with status {trouble}"]


def test_a_failing_workload_does_not_stop_the_next() -> None:
    pytest.importorskip("gymnasium")
    good = dataclasses.replace(ONE, variant="SyncVectorEnv", autoreset="NextStep")
    bad = dataclasses.replace(good, num_envs=-1)
    outcome = measure_peer(sys.executable, PEERS["gymnasium"], [bad, good], 0.01, 60.0)
    assert outcome.errors == []
    assert "failed" in outcome.lines[bad]
    assert outcome.lines[good]["seconds"] > 0


# --- results ---


def test_rows_contain_the_rate_of_gpu_envs_for_the_same_workload() -> None:
    team = Workload(TAG, "step", "cuda", 100, (10, 100), variant="any")
    fields = row(team, {"seconds": 0.5, "prepare_s": 2.0}, {"seconds": 0.1, "prepare_s": 0.0})
    assert set(fields) == MEASURED
    assert fields["env_steps_per_s"] == 200
    assert fields["agent_steps_per_s"] == 200 * 110
    assert fields["ours_env_steps_per_s"] == 1000
    assert fields["us_per_step"] == 5e5
    assert fields["cores"] is None  # not a CPU workload
    assert "5.0x" in format_row(fields)
    alone = row(team, {"seconds": 0.5, "prepare_s": 2.0}, {"failed": "no memory"})
    assert alone["ours_env_steps_per_s"] is None
    assert "ours" not in format_row(alone)
    failed = row(ONE, {"failed": "no memory"}, None)
    assert set(failed) == ROW | {"failed"}
    assert "no memory" in format_row(failed)


def test_a_variant_is_compared_with_our_standard_workload() -> None:
    other = dataclasses.replace(ONE, variant="SyncVectorEnv")
    section = format_section(
        "Gymnasium", PeerResults({}, {other: {"seconds": 4.0, "prepare_s": 0.0}}, []), {ONE: {"seconds": 2}}
    )
    assert section["rows"][0]["env_steps_per_s"] == 1
    assert section["rows"][0]["ours_env_steps_per_s"] == 2


def small_workloads(works: list[Workload]) -> list[Workload]:
    """Selects a workload of each kind with few replicas, without slow compilations."""
    selected = {
        (work.task, work.way, work.device, work.variant, work.cores): work.with_max_envs(8)
        for work in works
        if work.variant != "torch.compile"
    }
    return list(selected.values())


@pytest.mark.slow
def test_the_command_writes_a_section_for_each(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = {
        "gymnasium": dataclasses.replace(
            PEERS["gymnasium"], workloads=lambda _: small_workloads(PEERS["gymnasium"].workloads("cpu"))[:1]
        ),
        "absent": workloads.Peer("Absent", "gymnasium_vector", {"no_such": "no-such-package"}, lambda _: [OTHER]),
        "numba": PEERS["numba"],
    }
    monkeypatch.setattr(peers_main, "PEERS", chosen)
    monkeypatch.setattr(workloads, "our_workloads", lambda _: [Workload(CARTPOLE, "host", "cpu", 4, cores="one")])
    ours = dataclasses.replace(peers_main.OURS, needs={})
    monkeypatch.setattr(peers_main, "OURS", ours)
    words = ["peers", "--device", "cpu", "--seconds", "0.01", "--commit", "c0ffee"]
    monkeypatch.setattr(sys, "argv", words)
    peers_main.main()
    sections = json.loads((results / "peers_cpu.json").read_text())["sections"]
    assert list(sections) == ["ours", "gymnasium"]
    assert all(section["commit"] == "c0ffee" for section in sections.values())
    assert sections["ours"]["command"].startswith("python -m benchmarks.peers --device cpu")
    found = {name: section["results"] for name, section in sections.items()}
    assert all(set(section) == {"label", "versions", "rows", "trouble"} for section in found.values())
    assert found["gymnasium"]["versions"]["gymnasium"]
    (measured,) = found["gymnasium"]["rows"]
    assert set(measured) == MEASURED
    same_work = {"num_envs": 8, "cores": "one", "autoreset": "NextStep"}
    (same,) = (r for r in found["ours"]["rows"] if r | same_work == r)
    assert measured["ours_env_steps_per_s"] == same["env_steps_per_s"] > 0
    printed = capsys.readouterr().out
    assert "Numba-CUDA: needs a CUDA device" in printed
    assert "Absent: not installed: pip install no-such-package" in printed

    before = (results / "peers_cpu.json").read_text()
    monkeypatch.setattr(sys, "argv", [*words, "--only", "absent", "--replicas", "4"])
    peers_main.main()
    assert (results / "peers_cpu.json").read_text() == before  # a dry run writes nothing


# --- installed peers ---


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("name", "device"),
    [(name, device) for name, peer in PEERS.items() for device in DEVICES if peer.on_cpu or device == "cuda"],
)
def test_installed_peers_run(name: str, device: str) -> None:
    peer = PEERS[name]
    missing = process.missing_modules(sys.executable, tuple(peer.needs))
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    chosen = small_workloads(peer.workloads(device))
    outcome = measure_peer(sys.executable, peer, chosen, 0.01, 300.0)
    assert outcome.errors == []
    assert list(outcome.lines) == chosen
    for work, line in outcome.lines.items():
        assert "failed" not in line, (work, line)
        assert 0 < line["seconds"] < 60


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "work",
    [
        *(Workload(CARTPOLE, way, "cpu", 8, cores=cores) for way in ("host", "step") for cores in ("one", "all")),
        *(Workload("Pendulum-v1", way, device, 8) for way in ("host", "step", "fused") for device in DEVICES),
        *(Workload(CARTPOLE, way, device, 8) for way in ("fused", "train") for device in DEVICES),
        *(Workload(SIMPLE_TAG, "step", device, 4, (3, 1)) for device in DEVICES),
        *small_workloads([work for work in workloads.our_workloads("cuda") if work.device in DEVICES]),
    ],
    ids=lambda work: f"{work.task}-{work.way}-{work.cores}-{work.autoreset}-{work.device}-{work.variant}",
)
def test_gpu_envs_runs_each_kind_of_workload(work: Workload) -> None:
    pytest.importorskip("torch")
    from benchmarks.peers import ours

    measurement = ours.measure(work, 0.01)
    assert 0 < measurement.seconds < 60
    assert 0 < measurement.prepare_s < 300


def test_teams_have_the_requested_sizes() -> None:
    from benchmarks.peers import ours

    for work in (
        Workload(SIMPLE_TAG, "host", "cpu", 2, (3, 2)),
        Workload(workloads.SIMPLE_SPREAD, "host", "cpu", 2, (4,)),
        Workload(TAG, "host", "cpu", 2, (2, 5)),
        Workload(workloads.GRID, "host", "cpu", 2, (4, 1)),
    ):
        env = ours.make_env(work)
        assert tuple(env.counts.values()) == work.team
        assert sum(env.counts.values()) == work.agents


@pytest.mark.usefixtures("one_thread")
def test_the_torch_peer_plays_the_same_game() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.peers import torch_step

    def step(state: np.ndarray, elapsed: np.ndarray, action: np.ndarray) -> tuple[Any, ...]:
        seen = torch_step.step(*(torch.from_numpy(array) for array in (state, elapsed, action)))
        assert (seen.reward == 1).all()
        return seen.state, seen.elapsed, seen.terminated, seen.truncated

    assert assert_same_game(step) > 100
    state, elapsed = torch_step.start(4, "cpu")
    late = torch_step.step(state, elapsed + 499, torch.zeros(4, dtype=torch.int64))
    assert late.truncated.all()
    assert not late.terminated.any()


SIMULATED = """
import numpy as np
from benchmarks.peers import numba_step
from peer_games import same_game

def step(before, elapsed, action):
    state, steps, numbers, *written = numba_step.world(np.ascontiguousarray(before.T))
    steps.copy_to_device(elapsed)
    numba_step.step[4, 16](state, steps, numbers, action, *written)
    seen, rewards, over, late = (array.copy_to_host() for array in written)
    assert (rewards == 1).all()
    assert (seen == state.copy_to_host().T).all()
    return seen, steps.copy_to_host(), over, late

print(same_game(step))
"""


def test_the_numba_peer_plays_the_same_game() -> None:
    """Runs in Numba's CUDA simulator, which must be selected before Numba is imported."""
    if process.missing_modules(sys.executable, ["numba"]):
        pytest.skip("not installed: numba")
    paths = os.pathsep.join(
        [str(process.ROOT), str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    )
    assert int(run_python(SIMULATED, NUMBA_ENABLE_CUDASIM="1", PYTHONPATH=paths)) > 100


# --- scaling ---


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_scaling_has_a_point_for_each_size(device: str, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    short = scaling.measure(device, lines.append, seconds=0.005, replicas=(1, 8), agents=(2, 5))
    monkeypatch.setattr(scaling, "measure", lambda *_: short)
    monkeypatch.setattr(sys, "argv", ["throughput", "--device", device, "--only", "scaling"])
    throughput.main()
    assert [path.name for path in results.iterdir()] == [f"scaling_{device}.json"]
    document = json.loads((results / f"scaling_{device}.json").read_text())
    assert document["command"] == f"python -m benchmarks.throughput --device {device} --only scaling"
    measured = document["results"]
    assert set(measured) == {"ways", "single", "teams"}
    assert set(measured["single"]) == set(record.BYTES_PER_STEP)
    for curves in measured["single"].values():
        assert set(curves) == set(measured["ways"]) == {"step", "fused"} | ({"graph"} if device == "cuda" else set())
        for points in curves.values():
            assert [point["num_envs"] for point in points] == [1, 8]
            for point in points:
                assert point["steps_per_s"] * point["us_per_step"] == pytest.approx(1e6 * point["num_envs"])
    for env_id in (TAG, workloads.GRID):
        assert [point["agents"] for point in measured["teams"][env_id]] == [2, 5]
        for point in measured["teams"][env_id]:
            assert point["num_envs"] == scaling.TOTAL_AGENTS[device] // point["agents"]
            assert point["agent_steps_per_s"] == pytest.approx(point["env_steps_per_s"] * point["agents"])
            assert point["in_game"] > 0.99  # agents stay active, so that sizes are comparable
    assert len(lines) == len(measured["ways"]) * len(record.BYTES_PER_STEP) + 4


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_teams_grow_to_ten_thousand(device: str) -> None:
    assert (min(scaling.AGENTS[device]), max(scaling.AGENTS[device])) == (2, 10_000)
    for agents in scaling.AGENTS[device]:
        for env_id in (TAG, workloads.GRID):
            work = scaling.workload(env_id, agents, device)
            spec = gpu_envs.spec(env_id)
            assert isinstance(spec, gpu_envs.TeamSpec)
            params = spec.check_params(work.params, 1)
            assert sum(role.size(params) for role in spec.roles) == agents
            assert 1 <= work.num_envs <= scaling.TOTAL_AGENTS[device] // 2


def test_a_missing_device_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for module, main in ((throughput, throughput.main), (command, peers_main.main)):
        monkeypatch.setattr(module, "device_count", lambda: 0)
        monkeypatch.setattr(sys, "argv", ["command", "--device", "cuda"])
        with pytest.raises(SystemExit):
            main()
        assert "this machine has no CUDA device; give --device cpu" in capsys.readouterr().err


# --- custom environments ---


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_custom_environments_are_measured_with_similar_built_in_ones(
    device: str, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    short = functools.partial(custom.measure, sizes=(64, 65), seconds=0.001, compilations=1)
    monkeypatch.setattr(custom, "measure", short)
    custom.main(["--device", device, "--commit", "abc"])
    document = json.loads((results / f"custom_{device}.json").read_text())
    assert document["commit"] == "abc"
    measured, in_python = document["results"], {"CartPoleInPython-v1", "Lander-v0"}
    assert set(measured["speed"]) == set(custom.BASELINES)
    for name, rows in measured["speed"].items():
        assert [each["num_envs"] for each in rows] == [64, 65]
        for each in rows:
            assert each["beside"] == custom.BASELINES[name]
            assert each["bar"] == (0.90 if name in in_python else 0.95)
            assert min(each["steps_per_s"], each["beside_steps_per_s"], each["share"]) > 0
    assert set(measured["compile_s"]) == set(custom.COMPILED)
    assert min(measured["compile_s"].values()) > 0
    assert set(measured["more_in_python_s"]) == in_python
    assert len(capsys.readouterr().out.splitlines()) == 2 * len(custom.BASELINES) + len(custom.COMPILED) + 2 + 1
    monkeypatch.setattr(comparisons, "results", lambda _: measured)
    monkeypatch.setattr(comparisons, "device", lambda _: "a device")
    table = comparisons.custom(Path())
    assert all(percent(each["share"], 1) in table for rows in measured["speed"].values() for each in rows)


def test_lander_and_mountain_car_move_the_same_number_of_bytes() -> None:
    """State, elapsed steps and return are read and written; plus action, observation, reward, flags."""
    pytest.importorskip("torch")
    custom.register_environments()
    for ours, theirs in custom.BASELINES.items():
        sizes = []
        for name in (ours, theirs):
            spec = gpu_envs.spec(name)
            assert isinstance(spec, gpu_envs.EnvSpec)
            shape = spec.observation_space(spec.check_params({}, 1)).shape
            assert shape is not None
            sizes.append(8 * len(spec.fields) + 8 + 8 + 8 + 4 * shape[0] + 4 + 2)
        assert sizes[0] == sizes[1], ours
        assert sizes[1] == record.BYTES_PER_STEP.get(theirs, sizes[1])
