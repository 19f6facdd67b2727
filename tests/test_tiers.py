"""The two tiers of tests: slow cases, the time limit, and the script that sets the marks."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import HAS_CUDA, subprocess_env
from mark_slow import mark_of, with_marks, without_marks
from tiers import shuffle

TESTS = Path(__file__).parent

CASES = """
import pytest

@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1", "MountainCar-v0", "Acrobot-v1"])
def test_a_product(env_id):
    pass

@pytest.mark.every_environment
@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0"])
def test_every(env_id):
    pass

@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1"])
def test_modes(env_id, mode):
    pass

@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("number", range(4))
def test_many(number):
    pass

def burn():
    import time
    start = time.process_time()
    while time.process_time() < start + 0.3:
        pass

def test_costly():
    burn()

@pytest.mark.slow
def test_costly_and_slow():
    burn()

@pytest.fixture(scope="module")
def costly():
    burn()

def test_with_a_costly_fixture(costly):
    pass

def test_with_the_same_fixture(costly):
    pass

@pytest.mark.end_to_end
def test_costly_from_end_to_end():
    burn()

def test_starts_a_process():
    import subprocess, sys
    code = "import time\\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", code], check=True)

@pytest.mark.skipif(True, reason="needs a CUDA device")
def test_on_a_gpu():
    pass

@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_devices(device):
    pass

@pytest.mark.skipif(True, reason="needs a Hopper GPU")
def test_on_hopper():
    pass
"""


def run(folder: Path, *arguments: str) -> str:
    """Returns pytest's output for the cases, with the configuration of these tests."""
    (folder / "test_cases.py").write_text(CASES)
    (folder / "pytest.ini").write_text("[pytest]\n")
    settings = subprocess_env()
    settings["PYTHONPATH"] += f":{TESTS}:{TESTS / 'support'}:{TESTS / 'environments'}"
    words = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-rA", *arguments]
    return subprocess.run(words, cwd=folder, env=settings, capture_output=True, text=True, check=False).stdout


def ran(output: str) -> set[str]:
    """Returns the names of the passed cases."""
    lines = [line.split() for line in output.splitlines() if line.startswith("PASSED")]
    return {line[1].partition("::")[2] for line in lines}


@pytest.mark.slow
def test_slow_cases_and_gpu_cases(tmp_path: Path) -> None:
    quick = ran(run(tmp_path, "-m", "not slow and not cuda"))
    assert quick == {
        *(f"test_a_product[{name}]" for name in ("Pendulum-v1", "CartPole-v1", "Acrobot-v1")),  # the first stays
        *(f"test_every[{name}]" for name in ("CartPole-v1", "MountainCar-v0")),
        *(f"test_modes[CartPole-v1-{mode}]" for mode in ("NextStep", "SameStep", "Disabled")),
        "test_modes[Acrobot-v1-SameStep]",
        "test_many[0]",
        "test_many[1]",
        "test_costly",
        "test_costly_from_end_to_end",
        "test_starts_a_process",
        "test_with_a_costly_fixture",
        "test_with_the_same_fixture",
        "test_on_devices[cpu]",
        *(() if HAS_CUDA else ["test_on_devices[cuda]"]),
    }


@pytest.mark.slow
def test_the_time_limit_and_the_costs(tmp_path: Path) -> None:
    output = run(tmp_path, "-m", "not cuda or cuda", "--cpu-limit=0.2", f"--costs={tmp_path / 'costs'}")
    refused = ("test_costly", "test_starts_a_process", "test_with_a_costly_fixture", "test_with_the_same_fixture")
    assert set(re.findall(r"test_cases\.py::(\w+) used 0\.\d s of CPU time", output)) == set(refused)
    assert all(f"ERROR test_cases.py::{name} " in output for name in refused)
    assert "test_cases.py::test_on_hopper: 1 case" in output
    costs = [line.split(" ", 2) for line in (tmp_path / "costs").read_text().splitlines()]
    costly = {name.partition("::")[2] for own, shared, name in costs if float(own) + float(shared) > 0.25}
    assert costly == {*refused, "test_costly_and_slow", "test_costly_from_end_to_end"}


def test_the_seed_determines_the_order_of_cases() -> None:
    orders = []
    for seed in (1, 1, 2):
        cases: list[Any] = list(range(50))
        shuffle(cases, seed)
        orders.append(cases)
    assert orders[0] == orders[1] != orders[2] != sorted(orders[2])
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(50))


@pytest.mark.parametrize(
    ("costs", "mark"),
    [
        ([0.1, 0.9], None),
        ([0.1, 1.1, 0.1], "@pytest.mark.fast_cases(1)"),  # one above the limit of a case
        ([0.8, 0.8, 0.8, 0.8], "@pytest.mark.fast_cases(2)"),  # all above the limit of a function
        ([1.2, 0.1], "@pytest.mark.slow"),
    ],
)
def test_a_function_is_marked_by_its_costs(costs: list[float], mark: str | None) -> None:
    assert mark_of([(cost, 0.0) for cost in costs], 1.0, 2.0) == mark
    assert mark_of([(cost, 1.5) for cost in costs], 1.0, 2.0) == "@pytest.mark.slow"


def test_marks_are_set_once() -> None:
    source = (
        '@pytest.mark.parametrize(\n    "x",\n    [1],\n)\ndef test_one(x):\n    pass\n\n\ndef test_two():\n    pass\n'
    )
    marks = {"test_one": "@pytest.mark.fast_cases(1)", "test_two": "@pytest.mark.slow"}
    marked = with_marks(source, marks)
    assert marked.splitlines()[0] == marks["test_one"]
    assert "pass\n\n\n@pytest.mark.slow\ndef test_two()" in marked
    assert without_marks(marked) == source
    text = 'TEXT = """\n@pytest.mark.slow\ndef test(): ...\n"""\n'
    assert without_marks(text) == text
