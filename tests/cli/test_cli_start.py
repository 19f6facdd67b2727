"""What the program does without, so that it starts quickly."""

import gc
import subprocess
import sys
import textwrap
from typing import Any, NoReturn

import pytest
from cli_tools import run
from harness import HAS_TORCH, with_package

from gpu_envs.cli import main, settings, train
from gpu_envs.registry import known


def printed(script: str) -> list[str]:
    done = run(code=textwrap.dedent(script))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_program_looks_for_cycles_seldom_and_not_at_its_end() -> None:
    script = """
        import gc, sys
        from gpu_envs.cli import main
        sys.argv[1:] = ["--version"]
        before = gc.get_threshold()[0]
        main()
        print(gc.get_threshold()[0] > 2 * before, gc.get_freeze_count() > 0)
    """
    assert printed(script)[1:] == ["True True"]


def test_a_reader_that_is_gone_changes_no_exit_code() -> None:
    """Where something is still to be written when the process ends: Python's own code would be 120."""
    script = """
        import sys
        from gpu_envs.cli import main
        sys.stdin.read()
        sys.stderr.buffer.write(b"half a line")
        sys.argv[1:] = ["--version"]
        sys.exit(main())
    """
    words = [sys.executable, "-c", textwrap.dedent(script)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, env=with_package(PYTHONUNBUFFERED=""), stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stderr.close()
        process.stdin.close()
        assert process.wait() == 0


def test_who_calls_it_from_python_keeps_his_settings() -> None:
    before = gc.get_threshold(), gc.get_freeze_count()
    main(["--version"])
    assert (gc.get_threshold(), gc.get_freeze_count()) == before


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_the_device_starts_before_torch_is_imported() -> None:
    script = """
        import sys
        from gpu_envs.cli import main, train
        train.wake = lambda device: print(device, "torch" in sys.modules)
        words = "--device cpu --num-envs 8 --horizon 4 --total-steps 32 --run-dir= --no-progress"
        main(["train", "CartPole-v1", *words.split()])
    """
    assert printed(script)[0] == "cpu False"


class Silent:
    """A trainer that says what it was asked for."""

    def train(self, config: Any, **_: Any) -> NoReturn:
        raise ValueError(f"asked for {config.env} on {config.device}")


@pytest.mark.parametrize(
    ("module", "name"),
    [(train, "wake"), (train, "device_count"), (settings, "field_docs"), (known, "ids")],
    ids=["device", "number of GPUs", "descriptions of options", "environments"],
)
def test_what_a_run_does_not_need_is_not_asked_for(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trainer of one's own starts no device, a run on one GPU counts none, and help alone describes options."""

    def refuse(*_: Any) -> NoReturn:
        raise AssertionError(f"asks for {name}")

    monkeypatch.setattr(module, name, refuse)
    assert main(["train", "CartPole-v1", "--device=cuda", "--horizon=8"], trainer=Silent()) == 2
    assert "asked for CartPole-v1 on cuda" in capsys.readouterr().err
