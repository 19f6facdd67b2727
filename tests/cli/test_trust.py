"""Tests of ``--trust``: code that an untrusted run directory names does not run without it."""

import dataclasses
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_tools import error_of, run_process
from harness import subprocess_env

pytest.importorskip("torch")

from gpu_envs.cli import main
from gpu_envs.errors import UntrustedError
from gpu_envs.replays import record
from gpu_envs.training import Network, Run, evaluate, resume, train

pytestmark = pytest.mark.usefixtures("one_thread", "temporary_registry")

SPEC = """
from pathlib import Path
from gpu_envs.envs.cartpole import CARTPOLE_V1
import dataclasses
Path("was run").touch()
MINE = dataclasses.replace(CARTPOLE_V1, id="Mine-v0")
"""

COMMANDS = (
    ["eval", "--episodes=2", "--device=cpu"],
    ["play", "--steps=3", "--replicas=1", "--html=page.html"],
    ["train", "--resume", "--no-progress", "--total-steps=256"],
)


@pytest.fixture
def untrusted_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An untrusted run with an environment file in its folder, and a copy of the file in the working folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "untrusted"
    few = Run(env="CartPole-v1", num_envs=4, horizon=16, network=Network(hidden=(8,)), total_steps=64, threads=1)
    train(dataclasses.replace(few, device="cpu", run_dir=str(folder)), progress=False)
    (folder / "mine.py").write_text(SPEC)
    shutil.copy(folder / "mine.py", tmp_path / "somewhere.py")
    return folder


def set_environment(folder: Path, env: str) -> None:
    path = folder / "config.json"
    content = json.loads(path.read_text())
    content["config"]["env"] = env
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("env", ["mine.py:MINE", "somewhere:MINE"])
def test_code_that_the_user_did_not_name_does_not_run(
    env: str, command: Sequence[str], untrusted_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = str(untrusted_run / env) if ".py" in env else env
    set_environment(untrusted_run, env)
    at = command.index("--resume") + 1 if "--resume" in command else 1
    words = [*command[:at], str(untrusted_run), *command[at:]]
    error = error_of(capsys, *words)
    assert env.rpartition(":")[0] in error
    assert "--trust" in error
    assert not Path("was run").exists()
    main([*words, "--trust"])
    assert Path("was run").exists()
    sys.modules.pop("somewhere", None)


@pytest.mark.parametrize(
    ("stored", "imported"),
    [
        ("untrusted/mine.py:MINE", "untrusted/mine.py:MINE"),
        ("somewhere:MINE", "somewhere:MINE"),
        ("somewhere.py:MINE", "somewhere:MINE"),  # the file of a module
    ],
)
def test_code_that_the_user_named_runs(stored: str, imported: str, untrusted_run: Path) -> None:
    import gpu_envs

    set_environment(untrusted_run, str(untrusted_run.parent / stored) if ".py" in stored else stored)
    message = r"(mine\.py|somewhere\.py|'somewhere' .*) as its environment.*trust=True"
    uses = (
        lambda: evaluate(untrusted_run, episodes=2, device="cpu"),
        lambda: record(untrusted_run, steps=2, device="cpu"),
    )
    for use in (*uses, lambda: resume(untrusted_run, progress=False)):
        with pytest.raises(UntrustedError, match=message):
            use()
    gpu_envs.spec(imported)
    for use in uses:
        use()
    sys.modules.pop("somewhere", None)


@pytest.mark.slow
def test_installed_code_runs(untrusted_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_environment(untrusted_run, "package.inside:MINE")
    (tmp_path / "elsewhere" / "package").mkdir(parents=True)
    shutil.copy(untrusted_run / "mine.py", tmp_path / "elsewhere" / "package" / "inside.py")
    code = "import sys; from gpu_envs.cli import main; sys.exit(main(sys.argv[1:]))"
    paths = f"{tmp_path / 'elsewhere'}:{subprocess_env()['PYTHONPATH']}"
    assert "package.inside" in error_of(capsys, "eval", str(untrusted_run), "--episodes=2", "--device=cpu")
    assert (
        run_process("eval", str(untrusted_run), "--episodes=2", "--device=cpu", code=code, PYTHONPATH=paths).returncode
        == 0
    )


@pytest.mark.slow
def test_a_file_that_the_user_trained_with_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until it changes, and not a copy of it elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPU_ENVS_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "mine.py"
    file.write_text(SPEC)
    few = ("--num-envs=4", "--horizon=16", "--hidden=8", "--total-steps=64", "--device=cpu", "--no-progress")
    trained = run_process("train", "mine.py:MINE", "--run-dir=run", *few, GPU_ENVS_CACHE_DIR=str(tmp_path / "cache"))
    assert trained.returncode == 0, trained.stderr
    assert "--trust" not in trained.stdout
    words = ("eval", "run", "--episodes=2", "--device=cpu")
    file.write_text(SPEC + "\n")
    error = error_of(capsys, *words)
    assert "--trust" in error
    assert "mine.py as its environment (the file has changed since you trained with it)" in error
    file.write_text(SPEC)
    shutil.copy(file, tmp_path / "copy.py")
    set_environment(tmp_path / "run", str(tmp_path / "copy.py:MINE"))
    error = error_of(capsys, *words)
    assert "--trust" in error
    assert "changed" not in error
    set_environment(tmp_path / "run", f"{file}:MINE")
    (tmp_path / "cache").chmod(0o777)
    assert "--trust" in error_of(capsys, *words)
    (tmp_path / "cache").chmod(0o700)
    assert main([*words]) == 0
