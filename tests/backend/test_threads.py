"""The CPU's thread pool: every part of every job runs once, also when threads are late, and no thread hangs."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from harness import subprocess_env

import gpu_envs
from gpu_envs.backend.toolchain import find_compiler

STRESS = Path(__file__).parent / "pool_stress.cpp"
POOL = Path(gpu_envs.__file__).parent / "backend" / "threads.cpp"


def compiled(target: Path, *flags: str) -> str | None:
    """The path of the compiled stress program; None if this compiler does not know the flags."""
    compiler = [word for word in find_compiler() if word not in ("-nostdlib++", "-fno-exceptions")]  # STRESS needs both
    command = [*compiler, "-std=c++17", "-O2", "-pthread", *flags, str(POOL), str(STRESS), "-o", str(target)]
    return str(target) if subprocess.run(command, capture_output=True, check=False).returncode == 0 else None


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    program = compiled(tmp_path_factory.mktemp("pool") / "plain")
    assert program
    return program


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The stress program with ThreadSanitizer, which reports data races."""
    program = compiled(tmp_path_factory.mktemp("pool") / "sanitized", "-fsanitize=thread")
    if program is None:
        pytest.skip("this compiler has no ThreadSanitizer")
    trial = subprocess.run([program, "2"], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in trial.stderr:
        pytest.skip("ThreadSanitizer cannot run under this kernel")
    return program


def stress(program: str, *arguments: object, memory: int | None = None) -> None:
    """Runs the stress program, with a memory limit in bytes if ``memory`` is given."""
    limit = (lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory))) if memory else None
    command = [program, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, preexec_fn=limit)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_every_part_runs_once(sanitized: str, threads: int) -> None:
    stress(sanitized, 10_000, threads)


def test_slow_parts(sanitized: str) -> None:
    """Workers are still busy, or asleep, when the next jobs start."""
    stress(sanitized, 2_000, 8, 300)


@pytest.mark.slow
def test_more_threads_than_the_system_allows(plain: str) -> None:
    stress(plain, 2_000, 1_000, memory=1 << 30)


TWO_ENVIRONMENTS = """
import gpu_envs, numpy as np
pair = [gpu_envs.make("MountainCar-v0", 8192 * parts, device="cpu", threads=8, copy=False) for parts in (2, 8)]
steps = []
for env in pair:
    env.reset(seed=0)
    steps.append((env.direct_step()[0], env.locate_action(np.zeros(env.num_envs, np.int64))))
for _ in range(400):
    for step, action in steps:
        step(*action)
print([int(env.elapsed.min()) for env in pair])
"""


def test_alternating_jobs_with_different_numbers_of_parts() -> None:
    """More threads than cores, and jobs of two and of eight parts."""
    command = [sys.executable, "-c", TWO_ENVIRONMENTS]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=subprocess_env(), check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("threads", [0, 1025, 100_000])
def test_invalid_numbers_of_threads(threads: int) -> None:
    with pytest.raises(ValueError, match=rf"threads is {threads}; give an integer from 1 to 1024"):
        gpu_envs.make("CartPole-v1", 2, device="cpu", threads=threads)
