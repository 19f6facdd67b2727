"""The makefile's recipes, checked without running them: first messages, and arguments of commands."""

import contextlib
import functools
import http.server
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_tools import run_process
from harness import subprocess_env

from gpu_envs.cli import OK, main

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(
    shutil.which("make") is None or not (ROOT / "Makefile").is_file(), reason="there is no make, or nothing to make"
)


def recipe(target: str, *settings: str) -> list[str]:
    """Returns the commands of a target on a fresh machine."""
    words = ["make", "--no-print-directory", "--dry-run", "--always-make", target, *settings]
    alone = {name: value for name, value in os.environ.items() if name not in ("ARGS", "MAKEFLAGS")}
    done = subprocess.run(words, cwd=ROOT, env=alone, capture_output=True, text=True, check=True)
    return done.stdout.replace("\\\n", "").splitlines()


def trained(target: str, *settings: str) -> Any:
    (command,) = (line for line in recipe(target, *settings) if "gpu-envs train" in line)
    configs: list[Any] = []

    def train(config: Any, **_: Any) -> None:
        configs.append(config)
        raise KeyboardInterrupt

    assert main(shlex.split(command)[1:], trainer=SimpleNamespace(train=train)) != OK
    return configs[0]


def test_tag_without_a_gpu_trains_a_smaller_game_and_says_so_first() -> None:
    small, whole = (trained("tag", f"CUDA_EXTRA={extra}") for extra in ("", "cuda13"))
    assert small.total_steps < whole.total_steps / 5
    assert small.device == "cpu"
    for extra, said in (("", "about ten seconds"), ("cuda13", "seconds")):
        lines = recipe("tag", f"CUDA_EXTRA={extra}")
        (first,) = (i for i, line in enumerate(lines) if line.startswith("echo") and said in line)
        assert "gpu-envs train" in lines[first + 1]


def test_train_names_play() -> None:
    lines = recipe("train", "CUDA_EXTRA=")
    assert trained("train", "CUDA_EXTRA=").env == "CartPole-v1"
    assert "make play" in lines[-1]
    assert "gpu-envs train" in lines[-2]


@pytest.mark.parametrize("target", ["train", "test"])
def test_pip_is_not_silenced_and_installs_tested_versions(target: str) -> None:
    lines = recipe(target)
    calls = [i for i, line in enumerate(lines) if "pip install" in line]
    assert len(calls) == 2
    assert not any(word in lines[i] for i in calls for word in ("--quiet", " -q"))
    assert all("--constraint constraints.txt" in lines[i] for i in calls)
    assert "Setting up" in lines[calls[0] - 1]


@contextlib.contextmanager
def package_index(kind: str, folder: Path) -> Iterator[str]:
    """Serves an index that has a small package named torch, or one that never responds, or no index."""
    if kind == "answers":
        (folder / "torch").mkdir(parents=True)
        with zipfile.ZipFile(folder / "torch" / "torch-2.13.0+cpu-py3-none-any.whl", "w") as wheel:
            wheel.writestr("torch.py", "")
            info = "torch-2.13.0+cpu.dist-info/"
            wheel.writestr(f"{info}METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n")
            wheel.writestr(f"{info}WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}RECORD", "")
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()
        return
    with socket.create_server(("127.0.0.1", 0)) as server_socket:
        address = f"http://127.0.0.1:{server_socket.getsockname()[1]}"
        if kind == "hangs":
            yield address
    if kind == "is absent":
        yield address


@pytest.mark.parametrize("kind", ["answers", "hangs", "is absent"])
def test_without_a_gpu_torch_comes_from_an_index_without_cuda(kind: str, tmp_path: Path) -> None:
    """It is used if it answers within seconds, and the output says where torch comes from."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    installed = tmp_path / "installed"
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    with package_index(kind, tmp_path / "index") as address:
        settings = f"VENV={tmp_path}", "CUDA_EXTRA=", "CUDA_VERSION=", f"CPU_INDEX={address}"
        (command,) = (line for line in recipe("train", *settings) if address in line)
        env = {**alone, "PIP_TARGET": str(installed), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
        start = time.monotonic()
        done = subprocess.run(["sh", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert time.monotonic() - start < 30
    assert (installed / "torch.py").exists() == (kind == "answers"), done.stderr
    expected = "No GPU: torch comes from" if kind == "answers" else "does not answer: torch comes from the default"
    assert expected in done.stdout
    assert not done.stderr or kind == "answers"


def test_the_tests_announce_their_duration_and_omitted_tests() -> None:
    lines = recipe("test")
    (runs,) = (i for i, line in enumerate(lines) if "pytest" in line)
    assert "minutes" in lines[runs - 1]
    assert "make test-all" in lines[-1]


def test_constraints_contain_only_versions() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(re.match(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; |$)", line) for line in lines), "no options, no local versions"
    free = re.compile("(torch|cupy-.*|nvidia-cuda-nvrtc.*)==")
    assert not [line for line in lines if free.match(line)]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("processes", [[], ["-n", "2"]])
def test_a_failure_is_named_when_it_happens(tmp_path: Path, processes: list[str]) -> None:
    if processes:
        pytest.importorskip("xdist")
    file = tmp_path / "test_two.py"
    file.write_text("def test_wrong():\n    assert 1 == 2\n\ndef test_right():\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    tests = ROOT / "tests"
    paths = f"{subprocess_env()['PYTHONPATH']}:{tests}:{tests / 'support'}:{tests / 'environments'}"
    words = ("-p", "conftest", "-p", "no:cacheprovider", *processes, str(file))
    done = run_process(*words, module="pytest", cwd=tmp_path, PYTHONPATH=paths)
    said, _, _ = done.stdout.partition("= FAILURES")
    assert "failed: test_two.py::test_wrong: assert 1 == 2" in said, done.stdout + done.stderr
    assert "test_right" not in said
