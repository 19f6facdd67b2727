"""``gpu-envs new``: what it writes runs at once, as its own last lines say."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from cli_tools import refused, run, said
from harness import assert_same_bits

import gpu_envs
from gpu_envs import scaffold
from gpu_envs.cli import main
from gpu_envs.registry import known as registry

KINDS = ((), ("--python",), ("--multi-agent",), ("--multi-agent", "--python"))


pytestmark = pytest.mark.usefixtures("forgets")


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("options", KINDS, ids=lambda options: " ".join(options) or "plain")
def test_the_next_three_commands(options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    train, play, test = (line.strip() for line in said(capsys, "new", "a_boat", *options).splitlines()[-3:])
    few = ["--device=cpu", "--num-envs=64", "--total-steps=20_000", "--no-progress"]
    assert train.startswith("gpu-envs train a_boat/a_boat.py:A_BOAT --target-return ")
    assert "return" in said(capsys, *shlex.split(train)[1:], *few)
    assert play == "gpu-envs play runs/a_boat --trust"
    said(capsys, *shlex.split(play)[1:], "--html=boat.html", "--replicas=2", "--steps=20", "--device=cpu")
    assert "ABoat-v0" in (tmp_path / "boat.html").read_text()
    assert test == "pytest a_boat"
    whole = options == ("--multi-agent",)
    quick = [] if whole else ["-k", "not learnt and not promises"]  # one kind of environment shows that those pass
    done = run("-q", "-p", "no:cacheprovider", *shlex.split(test)[1:], *quick, module="pytest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{4 if whole else 2 if '--multi-agent' in options else 1} passed" in done.stdout


@pytest.mark.parametrize("team", [False, True])
def test_both_languages_have_the_same_rules(team: bool, device: str) -> None:
    results = []
    for python in (False, True):
        name = f"boat_{python}".lower()
        scaffold.write(Path(name), team=team, python=python)
        env = gpu_envs.make(f"{name}/{name}.py", 16, device=device)
        steps = [env.reset(seed=3)[0]]
        rng = np.random.default_rng(0)
        for _ in range(300):
            actions = rng.integers(0, 3, (16, 3) if team else 16)
            steps += env.step({"rower": actions} if team else actions)[:4]
        results.append(steps)
        env.close()
    assert_same_bits(results[0], results[1])


@pytest.mark.parametrize("team", [False, True])
@pytest.mark.parametrize("python", [False, True])
def test_no_trace_of_the_template_s_name_is_left(team: bool, python: bool) -> None:
    files = scaffold.write(Path("some/where/kite_2"), team=team, python=python)
    assert {file.name for file in files} == {"kite_2.py", "test_kite_2.py"} | (set() if python else {"kite_2.cuh"})
    for file in files:
        text = file.read_text()
        assert not any(word in text for word in ("my_env", "MY_ENV", "MyEnv"))
        assert "kite_2" in text or "KITE_2" in text
    module = next(file for file in files if file.name == "kite_2.py").read_text()
    constants = re.findall(r"^([A-Z]\w*).* = ", module, flags=re.MULTILINE)
    assert constants == ["KITE_2"], "an environment may have the name of any other"
    assert gpu_envs.spec("some/where/kite_2/kite_2.py:KITE_2").id == "Kite2-v0"


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean 'my_env'?" in refused(capsys, "new", "My-Env")
    assert "Did you mean 'my_env'?" in refused(capsys, "new", "MyEnv")
    assert "'random' is the name of another module" in refused(capsys, "new", "random")
    assert "'class' is not a name" in refused(capsys, "new", "class")
    assert "an environment 'CartPole-v0' already" in refused(capsys, "new", "cart_pole")
    assert "what is it called?" in refused(capsys, "new")
    assert not list(Path().iterdir())
    said(capsys, "new", "mine")
    before = Path("mine/mine.py").read_text()
    assert "mine is there already, and not empty" in refused(capsys, "new", "mine", "--python")
    assert Path("mine/mine.py").read_text() == before


@pytest.mark.slow
def test_list_and_check(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "new", "mine")
    file = Path("mine/mine.py")
    _, row = said(capsys, "list", str(file)).splitlines()
    assert row.split()[0] == "Mine-v0"
    assert row.endswith("  mine/mine.py:MINE")
    words = ("--device=cpu", "--no-sanitize", "--steps=12", "--num-envs=4")
    assert said(capsys, "check", f"{file}:MINE", *words).splitlines()[-1].startswith("Mine-v0: ")
    header = Path("mine/mine.cuh")
    header.write_text(header.read_text().replace("observation[1] = s.speed", "observation[1] = s.speed / real(0)"))
    assert main(["check", f"{file}:MINE", *words]) == 1
    text = capsys.readouterr()
    assert "failed   cpu: numbers are finite" in text.out
    assert text.err == ""
    second = file.read_text().replace("MINE = ", "OTHER = ").replace("Mine-v0", "Other-v0")
    Path("mine/both.py").write_text(file.read_text() + second)
    file.unlink()
    del registry.SPECS["Mine-v0"]
    _, *both = said(capsys, "list", "mine/both.py").splitlines()
    assert [line.split()[0] for line in both] == ["Mine-v0", "Other-v0"]
    assert "say which, such as mine/both.py:MINE" in refused(capsys, "train", "mine/both.py")
