"""Damaged or modified runs: commands that read them either work or end with one clear error.

``DAMAGES=10000`` sets the number of damaged files, ``MUTATIONS=10000`` the number of modified values.
"""

import copy
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from trainers import GRID, off_policy_run, small_run

torch = pytest.importorskip("torch")

from gpu_envs.cli import MISTAKE, OK, main  # noqa: E402
from gpu_envs.training import train  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

DAMAGES = int(os.environ.get("DAMAGES", "200"))
MUTATIONS = int(os.environ.get("MUTATIONS", "240"))
BATCHES = 10

COMMANDS = {
    "eval": ("eval", "RUN", "--episodes=2", "--device=cpu"),
    "play": ("play", "RUN", "--steps=2", "--replicas=1", "--device=cpu", "--html=page.html", "--no-progress"),
    "resume": ("train", "--resume", "RUN", "--total-steps=48", "--no-progress"),
}


@pytest.fixture(scope="module")
def intact_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints and a log."""
    path = tmp_path_factory.mktemp("whole") / "run"
    few: dict[str, Any] = {
        "num_envs": 2,
        "horizon": 8,
        "hidden": (4,),
        "epochs": 1,
        "minibatches": 1,
        "total_steps": 32,
    }
    config = small_run("cpu", log_interval=1, checkpoint_interval=1, run_dir=str(path), **few)
    train(config, progress=False)
    return path


def damaged(data: bytes, numbers: random.Random) -> bytes:
    """Flip a bit, truncate, or overwrite a piece."""
    kind, place = numbers.choice(("flip", "flip", "flip", "cut", "zeros", "noise")), numbers.randrange(len(data))
    if kind == "cut":
        return data[:place]
    changed = bytearray(data)
    if kind == "flip":
        changed[place] ^= 1 << numbers.randrange(8)
    else:
        size = min(numbers.choice((1, 8, 200)), len(data) - place)
        changed[place : place + size] = bytes(size) if kind == "zeros" else numbers.randbytes(size)
    return bytes(changed)


def outcome(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run a command; return its exit code and output."""
    capsys.readouterr()
    code = main([word.replace("RUN", str(run)) for word in COMMANDS[name]])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_damaged_file(
    batch: int, intact_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [path for path in intact_run.rglob("*") if path.is_file() and path.stat().st_size]
    files = sorted(path.relative_to(intact_run) for path in paths)
    assert {file.suffix for file in files} >= {".json", ".csv", ".pt"}
    right = outcome("eval", intact_run, capsys)
    run = tmp_path / "run"
    for number in range(batch, DAMAGES, BATCHES):
        numbers = random.Random(number)
        file, name = numbers.choice(files), numbers.choice(list(COMMANDS))
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(intact_run, run)
        (run / file).write_bytes(damaged((run / file).read_bytes(), numbers))
        case = f"case {number}: {name} of {file}"
        try:
            code, out, error = outcome(name, run, capsys)
        except BaseException as raised:
            raise AssertionError(case) from raised
        if code == OK:
            assert error == "", case
            assert name != "eval" or file.suffix == ".json" or out == right[1], case
        else:
            assert (code, out, error.count("gpu-envs: error: ")) == (MISTAKE, "", 1), f"{case}: {out}{error}"


ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    3,
    2**62,
    2**70,
    0.5,
    -1e300,
    float("nan"),
    "",
    "x",
    "auto",
    [],
    [1],
    ["a"],
    {},
    {"a": 1},
)
"""Values of all JSON types."""

CHANGES: tuple[Callable[[Any], Any], ...] = (
    lambda tensor: tensor.new_zeros(0),
    lambda tensor: tensor.unsqueeze(0),
    lambda tensor: tensor.flatten()[:1].clone(),
    lambda tensor: tensor.double(),
    lambda tensor: tensor.bool(),
    lambda tensor: tensor.to(torch.complex64),
    torch.zeros_like,
    lambda tensor: torch.full_like(tensor, float("nan") if tensor.is_floating_point() else 1),
)
"""Modifications of a tensor."""


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every nested container with each of its keys or indices."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(part, dict | list):
            yield from places(part)


def mutate(value: Any, numbers: random.Random) -> str:
    """Change the type of a part of a nested value, remove it, or add one; return a description of the change."""
    container, key = numbers.choice(list(places(value)))
    before = container[key]
    if numbers.random() < 0.2:
        del container[key]
        return f"{key!r} taken out"
    if isinstance(before, torch.Tensor) and numbers.random() < 0.6:
        container[key] = numbers.choice(CHANGES)(before)
    elif isinstance(before, list | dict) and numbers.random() < 0.4:
        new = copy.deepcopy(numbers.choice(list(before.values() if isinstance(before, dict) else before) or [0]))
        container[key] = [*before, new] if isinstance(before, list) else before | {"one more": new}
    else:
        container[key] = copy.deepcopy(numbers.choice(ODD))
    return f"{key!r} from {before!r:.100} to {container[key]!r:.100}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs whose checkpoints contain everything possible, except states of several processes."""
    folder = tmp_path_factory.mktemp("runs")
    few: dict[str, Any] = {"num_envs": 2, "horizon": 8, "hidden": (4,), "total_steps": 32, "log_interval": 3}
    few |= {"normalise_observations": True}
    own: dict[str, Any] = {"all.gamma": 0.9, "tagger.algorithm": "a2c", "tagger.hidden": (5,)}
    configs = [
        small_run("cpu", normalise_rewards=True, stagger=True, run_dir=str(folder / "one"), **few),
        small_run("cpu", algorithm="pqn", run_dir=str(folder / "values"), **few),
        off_policy_run("cpu", exploration="ou", batch_size=8, run_dir=str(folder / "buffer"), **few),
        small_run(
            "cpu", GRID, policies={"runner": "all", "tagger_0": "random"}, **own, run_dir=str(folder / "source"), **few
        ),
    ]
    frozen = {"runner": f"frozen:{folder / 'source'}:all"}
    configs.append(small_run("cpu", GRID, policies=frozen, run_dir=str(folder / "team"), **few))
    for config in configs:
        train(config, progress=False)
    return [Path(config.run_dir or "") for config in configs]


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_changed_value(
    batch: int, runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    for number in range(batch, MUTATIONS, BATCHES):
        numbers = random.Random(number)
        source, name = numbers.choice(runs), numbers.choice(("eval", "resume", "resume"))
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(source, run)
        if numbers.random() < 0.3:
            file = run / "config.json"
            content = json.loads(file.read_text())
            what = mutate(content, numbers)
            file.write_text(json.dumps(content))
        else:
            (file,) = (run / "checkpoints").glob("*.pt")
            content = torch.load(file, weights_only=True)
            what = mutate(content["payload"], numbers)
            torch.save(content, file)
        case = f"case {number}: {name} of {source.name}, {file.name}: {what}"
        try:
            code, out, error = outcome(name, run, capsys)
        except BaseException as raised:
            raise AssertionError(case) from raised
        assert code == OK or (code, out, error.count("gpu-envs: error: ")) == (MISTAKE, "", 1), f"{case}: {out}{error}"
