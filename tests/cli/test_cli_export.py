"""Tests of ``gpu-envs export``."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_tools import error_of, output_of, run_process

pytest.importorskip("torch")

from exporting import perturbed_run, run_model

pytestmark = pytest.mark.usefixtures("one_thread", "wide_terminal")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return perturbed_run(tmp_path_factory.mktemp("runs") / "cart", env="CartPole-v1", hidden=(8,))


@pytest.mark.end_to_end
@pytest.mark.slow
def test_both_formats(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    files = ("--onnx", "policy.onnx", "--safetensors", "policy.safetensors", "--sampled")
    output = output_of(capsys, "export", *files, str(run))
    names = ["policy.onnx", "policy.safetensors", "policy.json"]
    assert re.sub(r" \(\d+ KB\)", "", output).splitlines() == names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    observation, noise = [[0.0] * 4], [[0.5, 1e-9]]
    assert run_model(Path("policy.onnx"), observation=_floats(observation), noise=_floats(noise))["action"] == [0]


def _floats(rows: list[list[float]]) -> object:
    import numpy as np

    return np.array(rows, np.float32)


@pytest.mark.slow
def test_weights_in_other_commands(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    output_of(capsys, "export", str(run), "--safetensors", "policy.safetensors")
    options = ("--device", "cpu", "--episodes", "8", "--json", "--no-progress")
    results = [json.loads(output_of(capsys, "eval", source, *options)) for source in ("policy.safetensors", str(run))]
    assert results[0] == results[1]
    played = output_of(capsys, "play", "policy.safetensors", "--device", "cpu", "--steps", "3", "--html", "page.html")
    assert "page.html" in played
    assert '["Trained for","32 steps"]' in Path("page.html").read_text()
    assert "resume a run directory" in error_of(
        capsys, "train", "--resume", "policy.safetensors", "--total-steps", "100"
    )


@pytest.mark.slow
def test_weights_can_be_evaluated_in_another_process(run: Path, tmp_path: Path) -> None:
    done = run_process("export", str(run), "--safetensors", "policy.safetensors", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    done = run_process("eval", "policy.safetensors", "--episodes", "4", "--no-progress", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a run directory and --onnx policy.onnx"),
        (["runs/a"], "give a run directory and --onnx policy.onnx"),
        (["--onnx", "policy.onnx"], "give a run directory and --onnx policy.onnx"),
        (["runs/a", "--safetensors", "a.safetensors", "--sampled"], "and no --sampled"),
        (["runs/a", "runs/b", "--onnx", "policy.onnx"], "one run directory is expected; got 'runs/a' and 'runs/b'"),
        (["runs/a", "--onnx", "policy.onnx"], "the run directory runs/a does not exist"),
        (["runs/a", "--onnx", "policy"], "'policy'; give a name that ends in .onnx or .safetensors"),
        (["runs/a", "--onx", "policy.onnx"], "no option '--onx'. Did you mean '--onnx'?"),
    ],
)
def test_mistakes(
    words: Sequence[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in error_of(capsys, "export", *words)
    assert list(tmp_path.iterdir()) == []
