"""Tests of ``gpu-envs bench``, ``show`` and ``tune``, and of wrapped tables."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_tools import error_of, output_of
from harness import IDS, TEAM_IDS

import gpu_envs
from gpu_envs.backend import toolchain
from gpu_envs.backend.program import header_text
from gpu_envs.cli import bench, report
from gpu_envs.specs.team import TeamSpec

pytestmark = pytest.mark.usefixtures("builtin_registry", "wide_terminal")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("TagContinuous-v0", "--param", "num_taggers=2", "--param", "num_runners=1"),
            ["TagContinuous-v0", "cpu", f"{2**14 // 3:,}"],
        ),
        (("CartPole-v1", "--num-envs", "8", "--gpus", "2"), ["CartPole-v1", "2 x cpu", "16"]),
    ],
)
def test_bench_prints_a_row_for_each_measurement(
    words: tuple[str, ...], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    head, row, note = output_of(capsys, "bench", *words, "--seconds", "0.001", "--device", "cpu").splitlines()
    assert re.split("  +", head) == ["environment", "device", "replicas", "1 step/launch", "many/launch"]
    cells = re.split("  +", row)
    assert cells[:3] == expected
    assert len(cells) == (4 if isinstance(gpu_envs.spec(cells[0]), TeamSpec) else 5)
    assert all(re.fullmatch(r"\d+(\.\d+)?( [kMG])?", cell) for cell in cells[3:])
    assert note.startswith("(")


def test_bench_without_ids_measures_all_environments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "measure_rates", lambda *_: [1.0, 2e6])
    lines = output_of(capsys, "bench", "--device", "cpu").splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == gpu_envs.ids()
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("devices", [("cpu", "cuda:99"), ("cuda:99", "cpu")])
def test_the_error_of_one_process_is_raised(devices: tuple[str, str]) -> None:
    with pytest.raises(
        (ValueError, ImportError), match=r"cuda|CUDA|CuPy"
    ):  # not the broken barrier of the other process
        bench.measure_rates(devices, gpu_envs.spec("CartPole-v1"), 8, {}, 0.001)


def test_default_replicas() -> None:
    cartpole, tag = (gpu_envs.spec(env_id) for env_id in ("CartPole-v1", "TagContinuous-v0"))
    assert bench.default_replicas(cartpole, {}, "cpu") == 2**15
    assert bench.default_replicas(cartpole, {}, "cuda:0") == 2**20
    assert bench.default_replicas(tag, {}, "cuda:0") == 2**19 // 110
    assert bench.default_replicas(tag, {"num_runners": 10**6}, "cpu") == 1


@pytest.mark.parametrize("seconds", [1e-7, 1e-4, 0.03, 2.0])
def test_rate_is_steps_per_time(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that advances only in ``work``."""
    now, waits = [100.0], []

    def work(times: int) -> None:
        now[0] += times * seconds

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    measured_rate = bench.rate(work, lambda: waits.append(now[0]), 50, 1.0)
    assert measured_rate == pytest.approx(50 / seconds)
    assert len(waits) >= 2  # also after the warm-up
    assert now[0] - 100 < max(4, 3 * seconds)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(41.04e9, "41.0 G"), (337.2e6, "337 M"), (6244, "6.24 k"), (999.7e6, "1000 M"), (512.4, "512"), (1e9, "1.00 G")],
)
def test_format_rate(rate: float, text: str) -> None:
    assert bench.format_rate(rate) == text


def test_find_devices_finds_usable_devices(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(*_: object) -> Any:
        raise gpu_envs.NoCompilerError("there is no compiler")

    def no_cupy() -> Any:
        raise ImportError("device='cuda' needs CuPy: pip install it")

    for count, compiler, cupy, expected in (
        (0, True, False, ["cpu"]),
        (2, True, True, ["cpu", "cuda:0", "cuda:1"]),
        (1, False, True, ["cuda:0"]),
        (1, True, False, ["cpu"]),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(bench, "device_count", lambda count=count: count)
            patch.setattr(bench, "find_compiler", (lambda: ("c++",)) if compiler else missing)
            patch.setattr(bench, "import_cupy", (lambda: None) if cupy else no_cupy)
            assert bench.find_devices("all") == expected
    assert "the GPU is left out: device='cuda' needs CuPy" in capsys.readouterr().err
    monkeypatch.setattr(bench, "find_compiler", missing)
    monkeypatch.setattr(bench, "device_count", lambda: 0)
    with pytest.raises(gpu_envs.NoCompilerError):
        bench.find_devices("all")
    assert "there is no compiler" in error_of(capsys, "bench")
    assert "there is no compiler" in error_of(capsys, "bench", "--device", "cpu")


@pytest.mark.parametrize("env_id", [*IDS, *TEAM_IDS])
def test_show_prints_the_compiled_source(
    env_id: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sources: list[str] = []
    build = toolchain.build

    def watched(source: str, name: str, flags: Any = ()) -> Any:
        sources.append(source)
        return build(source, name, flags)

    monkeypatch.setattr("gpu_envs.backend.host.build", watched)
    params: dict[str, Any] = {"num_taggers": 3} if env_id.startswith("Tag") else {}
    gpu_envs.make(env_id, 7, device="cpu", autoreset_mode="SameStep", precision="float64", **params).close()
    words = ["--device=cpu", "--num-envs=7", "--autoreset-mode=SameStep", "--precision=float64"]
    words += [f"--param={name}={value}" for name, value in params.items()]
    assert output_of(capsys, "show", env_id, "--all", *words).rstrip("\n") == sources[0].rstrip("\n")
    environment_source = output_of(capsys, "show", env_id, *words)
    spec = gpu_envs.spec(env_id)
    assert isinstance(spec.header, str)
    rules = header_text(f"environments/{spec.header}")
    assert rules.strip() in environment_source
    assert f"// {env_id}, float64, SameStep" in environment_source
    assert len(environment_source) < len(sources[0]) / 2
    for part in environment_source.split('#line 1 "')[1:]:
        assert part.partition('"')[0] in ("generated", str(spec.header))
        assert part.rstrip("\n} ") in sources[0]
    assert output_of(capsys, "show", env_id, "--header") == f"{rules.rstrip()}\n"


def test_show_depends_on_compiled_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    plain = output_of(capsys, "show", "CartPole-v1", "--device", "cpu")
    assert plain == output_of(capsys, "show", "gpu_envs/CartPole-v1", "--device", "cpu", "--param", "gravity=3")
    other = output_of(
        capsys, "show", "CartPole-v1", "--device", "cpu", "--param", "kinematics_integrator=semi-implicit"
    )
    assert plain != other
    assert output_of(capsys, "show", "CartPole-v1", "--device", "cpu", "--driver", "rollout", "--all") != output_of(
        capsys, "show", "CartPole-v1", "--device", "cpu", "--all"
    )


def test_show_prints_code_for_a_gpu_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "SCHEDULE = BLOCK" in output_of(capsys, "show", "TagContinuous-v0", "--device", "cuda")
    few = ("--device", "cuda", "--num-envs", "1", "--param", "num_runners=9000", "--param", "num_taggers=1000")
    assert "SCHEDULE = SPREAD" in output_of(capsys, "show", "TagContinuous-v0", *few)
    assert "SCHEDULE = HOST" in output_of(capsys, "show", "TagContinuous-v0", "--device", "cpu")


def test_wrap_table_wraps_the_last_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    text = report.wrap_table(
        [("one", "a" * 10 + " " + "b" * 25), ("three", ""), ("x", "/a/path-that-is/not-broken" * 3)], "  "
    )
    assert text.splitlines() == [
        "  one    aaaaaaaaaa",
        "         " + "b" * 25,
        "  three",
        "  x      " + "/a/path-that-is/not-broken" * 3,
    ]
    assert report.line_width() == 44
    narrow = report.wrap_table([("a" * 30, "some words"), ("b", "more of them")], " ")
    assert narrow.splitlines() == [" " + "a" * 30, "     some words", " b", "     more of them"]
    monkeypatch.setenv("COLUMNS", "400")
    assert report.line_width() == 100


# --- tune, and --num-envs auto ---

FEW = ("CartPole-v1", "--preset", "none", "--device", "cpu", "--horizon", "8", "--hidden", "8", "--epochs", "1")


def test_tune_prints_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("gpu_envs.training.tuning._TIME_LIMIT", 0.5)
    header, *rows, until, knee, fits, auto = output_of(capsys, "tune", *FEW, "--total-steps", "25600").splitlines()
    assert header.split() == ["replicas", "memory", "rollout", "steps/s", "training", "steps/s"]
    assert rows
    assert {len(row) for row in rows} == {len(header)}
    for number, row in enumerate(rows):
        assert re.fullmatch(rf" +{16 * 2**number:,} +[\d,.]+ MiB +[\d,]+ +[\d,]+", row)
    assert re.fullmatch(r"measured until +(the time was over|training became no faster)", until)
    assert re.fullmatch(r"knee +[\d,]+ replicas, the fewest within 5 % of the fastest training", knee)
    assert re.fullmatch(r"largest that fits +[\d,]+ replicas", fits)
    assert auto == (
        "--num-envs auto    16 replicas, the largest power of two for which total_steps is at least 200 updates"
    )


@pytest.mark.slow
def test_training_prints_the_automatic_number_of_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    run = tmp_path / "run"
    words = ("train", *FEW, "--num-envs", "auto", "--no-progress", "--run-dir", str(run), "--total-steps")
    first, *_ = output_of(capsys, *words, "25600").splitlines()
    assert first == (
        "num_envs is 16: the largest power of two for which total_steps is at least 200 updates "
        "(16 to 16 were tried, until total_steps would be too few updates)"
    )
    assert json.loads((run / "config.json").read_text())["config"]["num_envs"] == 16
    assert "51,200 in 400 updates" in output_of(capsys, "train", "--resume", str(run), "--total-steps", "51200")
    message = error_of(capsys, "train", "--resume", str(run), "--num-envs", "auto")
    assert "--resume takes the environment and the settings from the run" in message
    assert "leave out --num-envs" in message
