"""Tests of ``gpu-envs new``: the printed commands work; and of typical mistakes in a first environment."""

import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_tools import error_of, output_of, run_process
from harness import assert_same_bits
from small_envs import walk
from wrong_specs import valid_env_spec

import gpu_envs
from gpu_envs import MultiAgentEnv, Param, Table, VectorEnv, scaffold
from gpu_envs.adapters.opening import open_env
from gpu_envs.cli import main
from gpu_envs.registry import catalog as registry
from gpu_envs.specs.params import ARGUMENTS

KINDS = ((), ("--python",), ("--multi-agent",), ("--multi-agent", "--python"))


pytestmark = pytest.mark.usefixtures("temporary_registry")


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("options", KINDS, ids=lambda options: " ".join(options) or "plain")
def test_the_printed_commands(options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    train, play, test = (line.strip() for line in output_of(capsys, "new", "a_boat", *options).splitlines()[-3:])
    few = ["--device=cpu", "--num-envs=64", "--total-steps=20_000", "--no-progress"]
    assert train.startswith("gpu-envs train a_boat/a_boat.py:A_BOAT --target-return ")
    assert "return" in output_of(capsys, *shlex.split(train)[1:], *few)
    assert play == "gpu-envs play runs/a_boat"
    output_of(capsys, *shlex.split(play)[1:], "--html=boat.html", "--replicas=2", "--steps=20", "--device=cpu")
    assert "ABoat-v0" in (tmp_path / "boat.html").read_text()
    assert test == "pytest a_boat"
    all_tests = options == ("--multi-agent",)
    # these two tests are slow: run them for one kind of environment
    quick = [] if all_tests else ["-k", "not training and not check_environment"]
    done = run_process("-q", "-p", "no:cacheprovider", *shlex.split(test)[1:], *quick, module="pytest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{4 if all_tests else 2 if '--multi-agent' in options else 1} passed" in done.stdout


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
def test_the_name_replaces_the_template_s_name(team: bool, python: bool) -> None:
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
    assert "Did you mean 'my_env'?" in error_of(capsys, "new", "My-Env")
    assert "Did you mean 'my_env'?" in error_of(capsys, "new", "MyEnv")
    assert "'random' is the name of another module" in error_of(capsys, "new", "random")
    assert "'class' is not a valid environment name" in error_of(capsys, "new", "class")
    assert "the environment 'CartPole-v0' exists already" in error_of(capsys, "new", "cart_pole")
    assert "which name?" in error_of(capsys, "new")
    assert not list(Path().iterdir())
    output_of(capsys, "new", "mine")
    before = Path("mine/mine.py").read_text()
    assert "mine exists and is not empty" in error_of(capsys, "new", "mine", "--python")
    assert Path("mine/mine.py").read_text() == before


@pytest.mark.slow
def test_list_and_check(capsys: pytest.CaptureFixture[str]) -> None:
    output_of(capsys, "new", "mine")
    file = Path("mine/mine.py")
    _, row = output_of(capsys, "list", str(file)).splitlines()
    assert row.split()[0] == "Mine-v0"
    assert row.endswith("  mine/mine.py:MINE")
    words = ("--device=cpu", "--no-sanitize", "--steps=12", "--num-envs=4")
    assert output_of(capsys, "check", f"{file}:MINE", *words).splitlines()[-1].startswith("Mine-v0: ")
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
    _, *both = output_of(capsys, "list", "mine/both.py").splitlines()
    assert [line.split()[0] for line in both] == ["Mine-v0", "Other-v0"]
    assert "name one, such as mine/both.py:MINE" in error_of(capsys, "train", "mine/both.py")


# --- typical mistakes in a first environment: each works, or the message names the fix ---

_ALLOW = "FN void allow(const State& s, const Params& p, Mask& mask) { mask[0] = s.x < real(0); }\n"


def test_a_mask_function_without_action_mask_in_the_spec(tmp_path: Path) -> None:
    spec = walk(tmp_path)
    assert isinstance(spec.header, Path)
    text = spec.header.read_text()
    spec.header.write_text(f"{text}// {_ALLOW}/* {_ALLOW} */\nFN bool allow(int a) {{ return a > 0; }}\n")
    gpu_envs.make(spec, device="cpu").close()  # comments and other functions do not count
    spec.header.write_text(text + _ALLOW)
    with pytest.raises(ValueError, match=r"has allow\(\.\.\.\), but the spec has no action_mask=True"):
        VectorEnv(spec, device="cpu")


def test_make_registers_the_id_of_a_spec(tmp_path: Path) -> None:
    spec = walk(tmp_path)
    assert gpu_envs.make(spec, 3, device="cpu").num_envs == 3
    assert open_env(spec, 2, "SameStep", {"device": "cpu"}, output="torch").num_envs == 2
    other = valid_env_spec(id=spec.id)
    for use in (gpu_envs.make, gpu_envs.register):
        with pytest.raises(ValueError, match=r"is taken by another .* gpu_envs\.register\(spec, replace=True\)"):
            use(other)
    assert gpu_envs.spec(spec.id) is spec
    gpu_envs.register(other, replace=True)
    assert gpu_envs.spec(spec.id) is other


def test_parameters_cannot_have_names_of_arguments() -> None:
    taken = {name for kind in (VectorEnv, MultiAgentEnv) for name in inspect.signature(kind.__init__).parameters}
    assert set(ARGUMENTS) == {*taken, "id", "env_id", "seed"} - {"params"}
    for where in ("params", "options"):
        for name in ARGUMENTS:
            with pytest.raises(ValueError, match=f"^Wrong-v0: {where}: {name!r} is an argument of gpu_envs.make"):
                valid_env_spec(**{where: {name: Param(1.0)}})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: valid_env_spec(state=("x", "y", "x")), "Wrong-v0: state names 'x' more than once"),
        (lambda: Param(0.4, minimum=1), "the default 0.4 is not allowed: give a finite number of at least 1"),
        (lambda: Param(0, positive=True), "the default 0 is not allowed: give an integer above 0"),
        (lambda: Param("a", choices=("b",)), "the default 'a' is not allowed: give one of 'b'"),
        (
            lambda: Param(2**40),
            "the default 1099511627776 is not allowed: give an integer (32 bits: -2147483647 to 2147483647)",
        ),
        (
            lambda: Param(3).check("count", -(2**31), 1),
            "parameter 'count' got -2147483648; allowed: an integer (32 bits: -2147483647 to 2147483647)",
        ),
        (lambda: Table([1.0, float("nan")]), "a table holds NaN (the first at [1]), which is not allowed"),
        (
            lambda: Table([[1.0, 2.0], [3.0]]),
            "a table has rows of different lengths; give an array of one to three dimensions",
        ),
    ],
)
def test_messages_of_invalid_values(make: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the message is compared below
        make()
    assert str(caught.value).startswith(message)
