"""A run's folder may come from somebody else: no code that it names is run before the user trusts it."""

import dataclasses
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_tools import refused, run
from harness import with_package

pytest.importorskip("torch")

from gpu_envs.cli import main
from gpu_envs.errors import UntrustedError
from gpu_envs.replays import record
from gpu_envs.training import Network, Run, evaluate, resume, train

pytestmark = pytest.mark.usefixtures("one_thread", "forgets")

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
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose environment is a file within its own folder, and beside the working folder's modules."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "stranger"
    few = Run(env="CartPole-v1", num_envs=4, horizon=16, network=Network(hidden=(8,)), total_steps=64, threads=1)
    train(dataclasses.replace(few, device="cpu", run_dir=str(folder)), progress=False)
    (folder / "mine.py").write_text(SPEC)
    shutil.copy(folder / "mine.py", tmp_path / "somewhere.py")
    return folder


def name(folder: Path, env: str) -> None:
    path = folder / "config.json"
    about = json.loads(path.read_text())
    about["config"]["env"] = env
    path.write_text(json.dumps(about))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("env", ["mine.py:MINE", "somewhere:MINE"])
def test_code_that_nobody_named_is_not_run(
    env: str, command: Sequence[str], stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = str(stranger / env) if ".py" in env else env
    name(stranger, env)
    at = command.index("--resume") + 1 if "--resume" in command else 1
    words = [*command[:at], str(stranger), *command[at:]]
    error = refused(capsys, *words)
    assert env.rpartition(":")[0] in error
    assert "--trust" in error
    assert not Path("was run").exists()
    main([*words, "--trust"])
    assert Path("was run").exists()
    sys.modules.pop("somewhere", None)


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        ("stranger/mine.py:MINE", "stranger/mine.py:MINE"),
        ("somewhere:MINE", "somewhere:MINE"),
        ("somewhere.py:MINE", "somewhere:MINE"),  # the file of a module
    ],
)
def test_what_the_user_named_is_run(stored: str, given: str, stranger: Path) -> None:
    import gpu_envs

    name(stranger, str(stranger.parent / stored) if ".py" in stored else stored)
    message = r"(mine\.py|somewhere\.py|'somewhere' .*) as its environment.*trust=True"
    uses = (lambda: evaluate(stranger, episodes=2, device="cpu"), lambda: record(stranger, steps=2, device="cpu"))
    for use in (*uses, lambda: resume(stranger, progress=False)):
        with pytest.raises(UntrustedError, match=message):
            use()
    gpu_envs.spec(given)
    for use in uses:
        use()
    sys.modules.pop("somewhere", None)


@pytest.mark.slow
def test_what_is_installed_is_run(stranger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name(stranger, "package.inside:MINE")
    (tmp_path / "elsewhere" / "package").mkdir(parents=True)
    shutil.copy(stranger / "mine.py", tmp_path / "elsewhere" / "package" / "inside.py")
    code = "import sys; from gpu_envs.cli import main; sys.exit(main(sys.argv[1:]))"
    paths = f"{tmp_path / 'elsewhere'}:{with_package()['PYTHONPATH']}"
    assert "package.inside" in refused(capsys, "eval", str(stranger), "--episodes=2", "--device=cpu")
    assert run("eval", str(stranger), "--episodes=2", "--device=cpu", code=code, PYTHONPATH=paths).returncode == 0
