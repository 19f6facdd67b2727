"""Tests of messages, ``gpu-envs list``, ``info`` and ``show --training``, and of what a command imports."""

import dataclasses
import gc
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from cli_tools import error_of, output_of, run_process
from harness import HAS_CUDA, HAS_TORCH, run_python, subprocess_env

import gpu_envs
from gpu_envs.backend import toolchain
from gpu_envs.backend.program import header_text
from gpu_envs.cli import OK, launch, main, probes, settings, train
from gpu_envs.cli.probes import Driver, Gpu
from gpu_envs.registry import catalog as registry
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.team import TeamSpec

pytestmark = pytest.mark.usefixtures("builtin_registry", "wide_terminal")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("GPU_ENVS_CACHE_DIR", str(folder))
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "CartPol-v1"], "there is no environment 'CartPol-v1'. Did you mean 'CartPole-v1'?"),
        (["list", "--parms"], "no option '--parms'. Did you mean '--params'?"),
        (["list", "CartPole-v1", "nonsense"], "there is no environment 'nonsense'"),
        (["info", "CartPole-v1"], "gpu-envs info does not take 'CartPole-v1'; leave it out"),
        (["bench", "Pendulum"], "Did you mean 'Pendulum-v1'?"),
        (["bench", "--seconds", "0"], "--seconds is 0; give a number above 0"),
        (["bench", "--seconds", "inf"], "--seconds is inf"),
        (["bench", "--seconds", "long"], "--seconds: 'long' is not a number"),
        (["bench", "--num-envs", "0"], "--num-envs is 0; give an integer of at least 1"),
        (["bench", "--device", "gpu"], "device is 'gpu'; allowed: 'auto', 'cpu', 'cuda', 'cuda:0' and so on, or all"),
        (["bench", "CartPole-v1", "--param", "gravty=1"], "no parameter 'gravty'. Did you mean 'gravity'?"),
        (["bench", "RiceN-v0", "--param", "backstop_price=1,2e3"], "an array is written in brackets: [1,2e3]"),
        (["eval", "CartPole-v1"], "CartPole-v1 is an environment; give the folder of a run. To train a run:"),
        (["eval", "deer.py:DEER"], "in Python: gpu_envs.evaluate(None, 'deer.py:DEER')"),
        (
            ["train", "CartPole-v1", "--env", "Acrobot-v1"],
            "one environment ID is expected; got 'CartPole-v1' and --env",
        ),
        (["train", "CartPole-v1", "--total-steps", "1.5"], "argument --total-steps: '1.5' is not an integer"),
        (["tune"], "which environment? Give an ID: Acrobot-v1, "),
        (["tune", "CartPole-v1", "--num-envs", "64"], "there is no option '--num-envs'"),
        (["tune", "CartPole-v1", "--preset", "defalt"], "no preset 'defalt'. Did you mean 'default'?"),
        (["show"], "which environment? Give an ID: Acrobot-v1, "),
        (["show", "CartPole"], "Did you mean 'CartPole-v1'?"),
        (["show", "CartPole-v1", "Pendulum-v1"], "one environment ID is expected"),
        (["show", "CartPole-v1", "--param", "length=-1"], "'length' got -1; allowed: a finite number above 0"),
        (["show", "CartPole-v1", "--precision", "float16"], "precision is 'float16'. Did you mean 'float"),
        (["show", "CartPole-v1", "--autoreset-mode", "Samestep"], "Did you mean 'SameStep'?"),
        (["show", "CartPole-v1", "--driver", "rolout"], "--driver is 'rolout'. Did you mean 'rollout'?"),
        (["show", "CartPole-v1", "--max-episode-steps", "0"], "max_episode_steps is 0"),
        (["show", "CartPole-v1", "--training", "--preset", "defualt"], "Did you mean 'default'?"),
        (["show", "CartPole-v1", "--preset", "default"], "give --training too"),
        (["show", "CartPole-v1", "--training", "--header"], "prints no C++"),
    ],
)
def test_messages_of_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in error_of(capsys, *words)


@pytest.mark.skipif(HAS_CUDA, reason="there is a GPU")
def test_a_missing_gpu_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    for words in (["bench", "CartPole-v1"], ["play", "CartPole-v1", "--policy", "agent=random"]):
        message = error_of(capsys, *words, "--device", "cuda:0")
        assert "no CUDA device or driver was found; gpu-envs info shows" in message


def test_commands_import_no_large_libraries() -> None:
    code = """
import sys
from gpu_envs.cli import main
main(["list"])
runs = {"gpu_envs.engine", "gpu_envs.codegen", "gpu_envs.training.run"} & set(sys.modules)
assert not runs, runs  # list and import gpu_envs stay quick
main(["show", "CartPole-v1", "--device", "cpu"])
main(["bench", "CartPole-v1", "--device", "cpu", "--seconds", "0.001", "--num-envs", "1"])
sys.exit(not {"torch", "cupy", "pygame", "imageio"}.isdisjoint(sys.modules))
"""
    done = run_process(code=code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_training_imports_no_slow_part_of_torch(tmp_path: Path) -> None:
    """Its compiler and SymPy take a second on a slow machine."""
    pytest.importorskip("torch")
    code = """
import sys
from gpu_envs.cli import main
main(["train", "CartPole-v1", "--device", "cpu", "--num-envs", "8", "--total-steps", "256", "--run-dir", sys.argv[1]])
slow = {"sympy", "torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes"} & set(sys.modules)
assert not slow, slow
"""
    done = run_process(str(tmp_path / "run"), code=code)
    assert done.returncode == 0, done.stderr


def test_show_training(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    here = output_of(capsys, "show", "CartPole-v1", "--training", "--device", "cpu").splitlines()
    assert here[:2] == ["CartPole-v1, preset default", "agent: 4 features, 64 x 64 tanh, tf32, cpu"]
    assert "  acting    kernel_act_and_step of cpu/act_and_step.cuh, a full" in here[2]
    torch_only = output_of(capsys, *"show RiceN-v0 --training --device cpu".split())
    assert torch_only.endswith("  why torch: agents share observations\n")
    there = output_of(capsys, "show", "CartPole-v1", "--training", "--device", "cuda", "--preset", "none")
    assert "default settings\nagent: " in there
    assert "kernel_act_and_step of small/act_and_step.cuh" in there
    assert "kernel_act of small/act.cuh" in output_of(capsys, *"show SimpleSpread-v3 --training --device cuda".split())
    assert "kernel_outputs of wide/act" in output_of(
        capsys, *"show Acrobot-v1 --training --device cuda --preset pqn".split()
    )
    shared = output_of(capsys, "show", "RiceN-v0", "--training", "--device", "cuda")
    assert "action masks (for small networks' kernels), and " in shared


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("Pendulum-v1 --preset sac --device cpu", "cpu/perceptrons.cuh"),
        ("Pendulum-v1 --preset sac --device cuda", "off_policy/small_batch"),
        ("TagContinuous-v0 --preset sac-runners --device cuda", "wide/act.cuh"),
        ("Acrobot-v1 --preset pqn --device cuda", "off_policy/pqn.cuh"),
        ("CartPole-v1 --device cuda", "small/act_and_step.cuh"),
    ],
)
def test_show_training_names_kernels_that_the_device_runs(
    capsys: pytest.CaptureFixture[str], options: str, expected: str
) -> None:
    """Each kernel is in the named header, and no header is only for the other kind of device."""
    pytest.importorskip("torch")
    text = output_of(capsys, "show", "--training", *options.split())
    headers = {name: header_text(f"training/{name}") for name in re.findall(r"[\w/]+\.cuh", text)}
    assert expected in text
    other_device = "static_assert(!ON_GPU)" if "cuda" in options else "CUDA only"
    assert [name for name, code in headers.items() if other_device in code] == []
    for kernels, name in re.findall(r"(kernel_\w+(?: and kernel_\w+)?) of ([\w/]+\.cuh)", text):
        for kernel in kernels.split(" and "):
            function = rf"> FN void {kernel.removeprefix('kernel_')}\(const \w*Call& call\b"
            assert re.search(rf"\bKERNEL\w*\({kernel},|{function}", headers[name]), f"{kernel} of {name}"


def test_list_lists_every_environment(capsys: pytest.CaptureFixture[str]) -> None:
    head, *rows = output_of(capsys, "list").splitlines()
    assert re.split("  +", head) == ["environment", "agents", "observation", "action", "limit", "solved"]
    assert [row.split()[0] for row in rows if not row.startswith(" ")] == gpu_envs.ids()
    cells = {row.split()[0]: re.split("  +", row) for row in rows}
    assert cells["CartPole-v1"][1:] == ["1", "Box(4)", "Discrete(2)", "500", "475"]
    assert cells["Pendulum-v1"][1:] == ["1", "Box(3)", "Box(1)", "200"]
    tag = ["10 tagger, 100 runner", "Box(71)", "MultiDiscrete(21, 21)", "500"]
    assert cells["TagContinuous-v0"][1:] == tag
    assert cells["RiceN-v0"][1:] == ["27 region", "Box(1043)", "MultiDiscrete(57 x 10)", "none"]
    governor = next(at for at, row in enumerate(rows) if row.startswith("CovidEconomy-v0"))
    assert cells["CovidEconomy-v0"][1:] == ["51 governor", "Box(64)", "Discrete(11)", "540"]
    assert re.split("  +", rows[governor + 1])[1:] == ["1 planner", "Box(463)", "Discrete(21)"]
    assert max(map(len, rows)) <= 100
    _, *rows = output_of(capsys, "list", "gpu_envs/Pendulum-v1", "CartPole-v1", "CartPole-v1").splitlines()
    assert [row.split()[0] for row in rows] == ["Pendulum-v1", "CartPole-v1"]


def test_list_in_a_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for words in (["list"], ["list", "--params"]):
        text = output_of(capsys, *words)
        assert max(map(len, text.splitlines())) <= 60
    assert "TagContinuous-v0\n  agents       10 tagger, 100 runner\n" in output_of(capsys, "list")
    assert "solved" not in output_of(capsys, "list", "TagContinuous-v0")  # it has no threshold


def test_list_describes_every_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of(capsys, "list", "--params")
    blocks = text.split("\n\n")
    assert [block.partition(":")[0] for block in blocks] == gpu_envs.ids()
    for block, spec in zip(blocks, map(gpu_envs.spec, gpu_envs.ids()), strict=True):
        assert spec.description in re.sub(r"\s+", " ", block)
        plain = re.sub(r"\s+", " ", block)
        for name, param in spec.settings.items():
            default = f"{param.default:.6g}" if isinstance(param.default, float) else str(param.default)
            if isinstance(param, Derived) or param.rank:
                default = "derived" if isinstance(param, Derived) else "an array"
            assert f" {name} {default} {param.description}" in plain
            for choice in param.choices:
                assert choice in plain
    assert " pole_mass                0.1      mass of the pole, kg (above 0)\n" in text
    assert "\n  explicit starts  x, y, heading\n" in text


def test_list_shows_registered_environments(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = gpu_envs.spec("TagGridWorld-v0")
    assert isinstance(tag, TeamSpec)
    name = "AnEnvironmentWhoseNameIsSoLongThatNoTableOfItFitsIntoAHundredColumnsOfAnyTerminal-v12"
    spec = dataclasses.replace(tag, id=name, description="", max_episode_steps=None)
    monkeypatch.setattr(registry, "SPECS", {spec.id: spec})
    text = output_of(capsys, "list")
    assert text.startswith(f"{spec.id}\n  agents       4 tagger, 1 runner\n")
    assert "  limit        none\n" in text
    assert output_of(capsys, "list", "--params").startswith(f"{spec.id}\n  parameters\n")


def rows_of(text: str) -> dict[str, str]:
    table = text.partition("\n\n")[0]
    joined = re.sub(r"\n {10,}", " ", table)
    return {cells[0]: cells[1] for cells in (re.split("  +", line, maxsplit=1) for line in joined.splitlines())}


def fake_probes(**results: Mapping[str, Any]) -> Callable[[], SimpleNamespace]:
    return lambda: SimpleNamespace(result=results.get)


H200 = Gpu("NVIDIA H200", 140 * 2**30, (9, 0))

CUPY = {"version": "14.2.0", "nvrtc": "13.0", "sum": "3"}

TORCH = {"version": "2.13.0", "cuda": "13.0", "available": True}


def info_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], driver: Driver, **results: Mapping[str, Any]
) -> tuple[dict[str, str], str]:
    """Return the rows and the advice of ``gpu-envs info`` for a driver and results of library tests."""
    monkeypatch.setattr(probes, "driver", lambda: driver)
    monkeypatch.setattr(probes, "LibraryProbes", fake_probes(**results))
    text = output_of(capsys, "info")
    return rows_of(text), re.sub(r"\s+", " ", text.partition("\n\n")[2])


def working(cuda: tuple[int, int] = (13, 0)) -> Driver:
    return Driver(True, "580.65", cuda, (H200,))


@pytest.mark.usefixtures("cache")
def test_info_with_everything_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows, advice = info_output(monkeypatch, capsys, working(), cupy=CUPY, torch=TORCH)
    assert rows["gpu_envs"].startswith(f"{gpu_envs.__version__}, ")
    assert rows["Python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert rows["device auto"] == ("cuda:0" if HAS_CUDA else "cpu")
    assert "unknown" not in rows["C++ compiler"]
    assert rows["CUDA driver"] == "580.65, CUDA 13.0"
    assert rows["cuda:0"] == "NVIDIA H200, 140 GiB, compute capability 9.0"
    assert rows["CuPy, NVRTC"] == "CuPy 14.2.0, NVRTC 13.0"
    assert rows["torch"] == "2.13.0, built for CUDA 13.0, finds the GPU"
    assert advice == "Nothing required is missing. "
    assert {row["name"]: row["text"] for row in json.loads(output_of(capsys, "info", "--json"))} == rows


@pytest.mark.parametrize("absent", ["skrl", ""])
def test_info_names_the_extras_of_missing_libraries(
    absent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def version(name: str) -> str:
        if name == absent:
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    row = info_output(monkeypatch, capsys, working(), cupy=CUPY, torch=TORCH)[0]["other libraries"]
    assert row.endswith("; optional: pip install 'gpu_envs[skrl]'" if absent else "mlflow-skinny 1.0")


CUPY_ROW, DRIVER_ROW = "CuPy, NVRTC", "CUDA driver"

MISSING: Mapping[str, tuple[Driver, Mapping[str, Any] | None, Mapping[str, Any] | None, str, str, str]] = {
    "CuPy": (working(), None, TORCH, CUPY_ROW, "not installed", "pip install 'gpu_envs[cuda13]'"),
    "CuPy for CUDA 12": (working((12, 8)), None, TORCH, CUPY_ROW, "not installed", "pip install 'gpu_envs[cuda12]'"),
    "a driver of today": (working((11, 4)), None, TORCH, DRIVER_ROW, "580.65, CUDA 11.4", "older than CUDA 12"),
    "what CuPy imports": (
        *(working(), {"error": "ImportError: libx"}, TORCH, CUPY_ROW, "does not import: ImportError: libx"),
        "CuPy does not import (ImportError: libx): pip install 'gpu_envs[cuda13]'",
    ),
    "NVRTC": (
        *(working(), {"version": "14.2.0", "nvrtc error": "RuntimeError: no library"}, TORCH, CUPY_ROW),
        "CuPy 14.2.0; NVRTC does not load: RuntimeError: no library",
        "NVRTC does not load, so nothing can be compiled for the GPU: pip install 'gpu_envs[cuda13]'",
    ),
    "a driver for CuPy": (
        *(working((12, 8)), {"version": "14.2.0", "nvrtc": "13.0", "sum error": "driver is too old"}, TORCH, CUPY_ROW),
        "CuPy 14.2.0, NVRTC 13.0; a first kernel fails: driver is too old",
        "CuPy cannot use the GPU (driver is too old): pip install 'gpu_envs[cuda12]'",
    ),
    "torch": (working(), CUPY, None, "torch", "not installed", "need torch: pip install 'gpu_envs[train]'"),
    "what torch imports": (
        *(working(), CUPY, {"error": "OSError: x.so"}, "torch", "does not import: OSError: x.so"),
        "torch does not import (OSError: x.so)",
    ),
    "torch for a GPU": (
        *(working(), CUPY, {"version": "2.13.0+cpu", "cuda": None, "available": False}, "torch"),
        "2.13.0+cpu, built without CUDA, finds no GPU",
        "torch does not find the GPU, so training uses the CPU: pip install --force-reinstall torch",
    ),
    "torch for this driver": (
        *(working((12, 4)), CUPY, TORCH | {"available": False}, "torch"),
        *("2.13.0, built for CUDA 13.0, finds no GPU", "--index-url https://download.pytorch.org/whl/cu126"),
    ),
    "a driver that starts": (
        *(Driver(True, "", (12, 0), (), "version mismatch (error 803)"), CUPY, TORCH, DRIVER_ROW),
        "unknown version, CUDA 12.0; it does not start: version mismatch (error 803)",
        "does not start (version mismatch (error 803)): run nvidia-smi for details",
    ),
    "a GPU": (Driver(True, "580.65", (13, 0)), CUPY, TORCH, DRIVER_ROW, "580.65, CUDA 13.0; it finds no GPU", ""),
    "a driver": (Driver(False), None, TORCH, DRIVER_ROW, "none", ""),
    "both": (Driver(False), {"error": "x"}, TORCH, CUPY_ROW, "does not import: x", ""),
}


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("missing", MISSING)
def test_info_names_what_is_missing_and_the_command_that_installs_it(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    driver, cupy, torch, row, text, advice = MISSING[missing]
    results = {name: result for name, result in (("cupy", cupy), ("torch", torch)) if result is not None}
    rows, printed_advice = info_output(monkeypatch, capsys, driver, **results)
    assert rows[row] == text
    assert advice in printed_advice if advice else printed_advice == "Nothing required is missing. "


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("broken", ["driver", "LibraryProbes", "try_compiler", "is_installed"])
def test_info_survives_failing_checks(
    broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("this machine is strange\nin many ways")

    monkeypatch.setattr(probes, "LibraryProbes", fake_probes(cupy=CUPY, torch=TORCH))
    monkeypatch.setattr(probes, broken, fail)
    text = output_of(capsys, "info")
    assert "in many ways" not in text
    assert ("unknown: this machine is strange" in text) == (broken != "is_installed" or HAS_CUDA)


CRASHES = {
    "raises": ("raise RuntimeError('broken to bits')", "does not import: RuntimeError: broken to bits"),
    "is killed": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "Python exited with code -11"),
    "leaves": ("import os; os._exit(3)", "Python exited with code 3"),
    "exits": ("import sys; sys.exit('goodbye')", "does not import: SystemExit: goodbye"),
    "chatters": ("print('hello'); raise ImportError('no such thing')", "does not import: ImportError: no such thing"),
    "is empty": ("", "does not import: AttributeError"),
}


@pytest.mark.parametrize(("cupy_crash", "torch_crash"), [*zip(CRASHES, reversed(CRASHES), strict=True)])
def test_a_library_that_crashes_is_only_reported(cupy_crash: str, torch_crash: str, tmp_path: Path) -> None:
    for library, crash in {"cupy": cupy_crash, "torch": torch_crash}.items():
        (tmp_path / library).mkdir()
        (tmp_path / library / "__init__.py").write_text(CRASHES[crash][0])
    paths = os.pathsep.join([str(tmp_path), subprocess_env()["PYTHONPATH"]])
    done = run_process("info", PYTHONPATH=paths, GPU_ENVS_CACHE_DIR=str(tmp_path / "cache"))
    assert (done.returncode, done.stderr) == (OK, "")
    rows = rows_of(done.stdout)
    assert CRASHES[cupy_crash][1] in rows["CuPy, NVRTC"]
    assert CRASHES[torch_crash][1] in rows["torch"]
    assert "Traceback" not in done.stdout


@pytest.mark.slow
def test_info_imports_the_installed_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a file torch.py in the working folder, which may be an untrusted run directory."""
    torch = pytest.importorskip("torch")
    (tmp_path / "torch.py").write_text("raise SystemExit('a file of the working folder')")
    monkeypatch.chdir(tmp_path)
    library_probes = probes.LibraryProbes()
    results = {name: library_probes.result(name) or {} for name in ("cupy", "torch")}
    assert results["torch"]["version"] == torch.__version__


def test_a_hanging_library_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cupy.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(probes, "TIMEOUT", 0.2)
    monkeypatch.setattr(probes, "is_installed", lambda name: name == "cupy")
    library_probes = probes.LibraryProbes()
    assert library_probes.result("cupy") == {"error": "no answer within 0.2 s"}
    assert library_probes.result("torch") is None


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH and no CXX; no library is imported."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(probes, "LibraryProbes", fake_probes(torch=TORCH))
    return folder


@pytest.mark.usefixtures("cache")
def test_info_without_a_compiler(
    bare_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not list(bare_path.iterdir())
    find_spec = importlib.util.find_spec
    specs = {"ziglang": None}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: specs[name] if name in specs else find_spec(name))
    text = output_of(capsys, "info")
    assert rows_of(text)["C++ compiler"] == "none"
    assert "pip install ziglang" in text
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert "CXX is '/nowhere/c++', which was not found" in re.sub(r"\s+", " ", output_of(capsys, "info"))
    assert "CXX is '/nowhere/c++'" in error_of(capsys, "bench", "--device", "cpu")
    monkeypatch.setenv("CXX", '"')
    text = re.sub(r"\s+", " ", output_of(capsys, "info"))
    assert "no valid command (No closing quotation); correct or unset it" in text
    assert "Nothing required is missing" not in text


@pytest.mark.usefixtures("cache")
def test_info_with_a_failing_compiler(bare_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = bare_path / "c++"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "mine 1.0" || { echo "out of order" >&2; exit 1; }\n')
    program.chmod(0o755)
    text = output_of(capsys, "info")
    assert rows_of(text)["C++ compiler"] == f"{bare_path}/c++ (mine 1.0) does not compile"
    assert "out of order" in re.sub(r"\s+", " ", text)
    assert "CXX=/path/to/another" in re.sub(r"\s+", " ", text)


def test_the_cache_is_counted_and_cleared(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probes, "LibraryProbes", fake_probes(torch=TORCH))
    assert output_of(capsys, "info", "--clear-cache") == f"removed 0 compiled programs, 0.0 MB, from {cache}\n"
    source = 'extern "C" __attribute__((visibility("default"))) int answer() { return 1; }'
    assert toolchain.build(source, "Mine-v0").answer() == 1
    toolchain.build(source.replace("1", "2"), "Mine-v0")
    toolchain.write_sealed(cache / f"Mine-v0-{'0' * 32}-{'0' * 8}.cubin", b"of a GPU")
    (cache / "build-abc").mkdir()
    (cache / "build-abc" / "left.cpp").write_text("x" * 10**6)
    for name in ("notes.txt", "Mine-v0.so"):
        (cache / name).write_text("not ours")
    libraries = toolchain.cache_files()
    assert len(libraries) == 4
    assert re.fullmatch(rf"{cache}: 4 compiled programs, 1\.\d MB", rows_of(output_of(capsys, "info"))["cache"])
    assert re.fullmatch(
        rf"removed 4 compiled programs, 1\.\d MB, from {cache}\n", output_of(capsys, "info", "--clear-cache")
    )
    assert sorted(path.name for path in cache.iterdir()) == ["Mine-v0.so", "notes.txt"]
    assert toolchain.build(source, "Mine-v0").answer() == 1


def test_info_with_an_unusable_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setattr(probes, "LibraryProbes", fake_probes(torch=TORCH))
    for folder, row, advice in (
        ("file/cache", "it is not writable", "set GPU_ENVS_CACHE_DIR to a writable folder"),
        ("open", "it is not used, because other users can write to it", "empty it and chmod 700 it"),
    ):
        monkeypatch.setenv("GPU_ENVS_CACHE_DIR", str(tmp_path / folder))
        text = output_of(capsys, "info")
        assert row in rows_of(text)["cache"]
        assert advice in re.sub(r"\s+", " ", text)


# --- quick start ---


def test_the_garbage_collector_runs_seldom_and_not_at_exit() -> None:
    script = """
        import gc, sys
        from gpu_envs.cli import main
        sys.argv[1:] = ["--version"]
        before = gc.get_threshold()[0]
        main()
        print(gc.get_threshold()[0] > 2 * before, gc.get_freeze_count() > 0)
    """
    assert run_python(script).splitlines()[1:] == ["True True"]


def test_calls_from_python_leave_the_garbage_collector_alone() -> None:
    before = gc.get_threshold(), gc.get_freeze_count()
    main(["--version"])
    assert (gc.get_threshold(), gc.get_freeze_count()) == before


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_the_device_starts_before_torch_is_imported() -> None:
    script = """
        import sys
        from gpu_envs.cli import main, train
        train.start_context_in_thread = lambda device: print(device, "torch" in sys.modules)
        words = "--device cpu --num-envs 8 --horizon 4 --total-steps 32 --run-dir= --no-progress"
        main(["train", "CartPole-v1", *words.split()])
    """
    assert run_python(script).splitlines()[0] == "cpu False"


@pytest.mark.parametrize(
    ("module", "name"),
    [(train, "start_context_in_thread"), (launch, "device_count"), (settings, "field_docs"), (registry, "ids")],
    ids=["device", "number of GPUs", "descriptions of options", "environments"],
)
def test_a_run_calls_no_unused_functions(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a given trainer no device starts; with one GPU no GPU is counted; only help reads the descriptions."""

    def refuse(*_: Any) -> NoReturn:
        raise AssertionError(f"calls {name}")

    def fake_train(config: Any, **_: Any) -> NoReturn:
        raise ValueError(f"training {config.env} on {config.device}")

    monkeypatch.setattr(module, name, refuse)
    words = ["train", "CartPole-v1", "--device=cuda", "--horizon=8"]
    assert main(words, trainer=SimpleNamespace(train=fake_train)) == 2
    assert "training CartPole-v1 on cuda" in capsys.readouterr().err
