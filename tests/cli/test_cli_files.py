"""Tests of settings files, JSON output, tab completion, and help in a narrow terminal."""

import dataclasses
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cli_tools import error_of, output_of
from harness import subprocess_env
from trainers import run_of

import gpu_envs
from gpu_envs.cli import main
from gpu_envs.cli.commands import COMMANDS
from gpu_envs.cli.completion import completions
from gpu_envs.training.presets import PRESETS
from gpu_envs.training.run import Run
from gpu_envs.training.settings_file import load_settings, to_toml

pytestmark = pytest.mark.usefixtures("builtin_registry")

CONFIGS = [
    run_of(env="CartPole-v1"),
    *(run_of(**({"env": env} | dict(values))) for env, named in PRESETS.items() for values in named.values()),
    run_of(env="Pendulum-v1", num_envs="auto", learning_rate="0:0.1,1:1e-9", max_grad_norm=None, hidden=(3,)),
    run_of(
        env="Odd-v0",
        params={"each": np.linspace(-1, 1, 3), "word": 'a "b"\n\\\x7fé', "far": math.inf, "on": True, "a.b c": -0.0},
        policies={"the role": "frozen:runs/a=b:x"},
        seed=2**70,
        target_kl=0.5,
        **{
            "x.y.hidden": (1, 2),
            "x.y.target_kl": None,
            "x.y.entropy_weight": "0:1,1:0",
            "z.algorithm": "td3",
            "z.noise": 1,
        },
    ),
]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    pytest.importorskip("torch")
    words = ("--device", "cpu", "--num-envs", "8", "--horizon", "8", "--hidden", "8", "--total-steps", "128")
    folder = tmp_path / "run"
    output_of(capsys, "train", "CartPole-v1", *words, "--param", "length=0.7", "--run-dir", str(folder))
    return folder


def parse_run(*words: str) -> Run:
    configs: list[Run] = []

    def train(config: Run, **_: Any) -> None:
        configs.append(config)
        raise KeyboardInterrupt

    main(["train", *words, "--debug"], trainer=SimpleNamespace(train=train))
    return configs[0]


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--lr", "1e-3"], "learning_rate", "0.001"),
        (["--total-steps", "1.5M"], "total_steps", 1_500_000),
        (["--num-envs", "2k"], "num_envs", 2000),
    ],
)
def test_short_forms(words: list[str], name: str, value: Any) -> None:
    assert parse_run("CartPole-v1", *words).flat()[name] == value
    assert parse_run("--env", "CartPole-v1", *words).flat()[name] == value


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.env)
def test_a_settings_file_has_all_settings_of_a_run(config: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(to_toml(config), "utf-8")
    result = load_settings(path)
    values, expected = result.flat(), config.flat()
    for name in ("run_dir", "gpus"):
        del values[name], expected[name]
    np.testing.assert_equal(values, expected)


def test_the_settings_file_of_a_run_repeats_it(run: Path) -> None:
    again = parse_run("--config", str(run / "run.toml"))
    assert again == dataclasses.replace(load_settings(run / "run.toml"), run_dir=None)
    assert (again.params, again.num_envs, again.total_steps) == ({"length": 0.7}, 8, 128)


def test_options_override_a_file_and_a_file_overrides_presets(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text(
        'env = "CartPole-v1"\ntotal_steps = 1e6\nvalue_clip = "none"\n[params]\ngravity = 1\nlength = 2.0\n'
    )
    alone = parse_run("--config", str(file))
    plain = run_of(env="CartPole-v1")
    assert (alone.total_steps, alone.params) == (10**6, {"gravity": 1, "length": 2.0})
    preset = parse_run("CartPole-v1")
    assert alone.algorithm.learning_rate == plain.algorithm.learning_rate != preset.algorithm.learning_rate
    over = parse_run("Pendulum-v1", "--config", str(file), "--param", "gravity=3", "--seed", "5", "--preset", "default")
    assert (over.env, over.seed, over.params) == ("Pendulum-v1", 5, {"gravity": 3, "length": 2.0})
    assert over.algorithm.gamma == PRESETS["Pendulum-v1"]["default"]["gamma"]


def test_the_preset_depends_on_the_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    pqn = {"algorithm": "pqn", "epsilon": 0.1}
    presets = {"default": {"seed": 1}, "big": {"seed": 2}, "pqn": {**pqn, "seed": 3}, "pqn-big": {**pqn, "seed": 4}}
    monkeypatch.setattr("gpu_envs.cli.train.PRESETS", {"CartPole-v1": presets, "Pendulum-v1": {"slow": {"seed": 5}}})
    for words, seed in (
        ("", 1),
        ("--algorithm ppo", 1),
        ("--algorithm pqn", 3),
        ("--preset pqn", 3),
        ("--preset big", 2),
        ("--algorithm pqn --preset pqn-big", 4),
        ("--algorithm pqn --preset none", 0),
        ("--algorithm a2c", 0),  # no preset of another algorithm
    ):
        config = parse_run("CartPole-v1", *words.split())
        assert config.seed == seed
        assert config.algorithm.name == next((name for name in ("a2c", "pqn") if name in words), "ppo")
    assert parse_run("Pendulum-v1", "--algorithm", "ppo") == run_of(env="Pendulum-v1")
    with pytest.raises(ValueError, match=r"'big' of CartPole-v1 is for ppo, and the algorithm is pqn; .*: pqn, pqn-"):
        parse_run("CartPole-v1", "--preset", "big", "--algorithm", "pqn")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gama = 1", "my.toml: a training run has no setting 'gama'. Did you mean 'gamma'?"),
        ("gamma = ", "my.toml is not a valid TOML file"),
        ("gamma = 'x'", "gamma is 'x'; give a finite number"),
        (
            "[a]\ndevice = 'cpu'",
            "a.device: the setting 'device' applies to the whole run. A policy can set: algo",
        ),
        ("[a]\ngama = 1", "a.gama: the setting 'gama' does not exist. Did you mean 'gamma'?"),
        ("[a]\ngamma = 2", "policy 'a': gamma is 2; give a number from 0 to 1"),
        ("[a]\ntau = 0.1", "policy 'a': ppo has no tau, which is a setting of sac, td3 and ddpg"),
        ("a = 3", "my.toml: a training run has no setting 'a'"),
        ("[policies]\na = {gamma = 1}", "policies gives 'a' {'gamma': 1}; give a Policy, or a printable policy name"),
        ("params = 3", "my.toml: params is 3; give a table, [params]"),
        ("[gamma]\nhidden = [3]", "gamma is {'hidden': [3]}; give a finite number"),
        ("tau = 0.1", "ppo has no tau, which is a setting of sac, td3 and ddpg; leave it out"),
        (f"hidden = {'[' * 2000}{']' * 2000}", "my.toml is not a valid TOML file: maximum recursion"),
        ("\ufeffgamma = 'x'", "gamma is 'x'; give a finite number"),
    ],
)
def test_mistakes_in_a_file(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my.toml"
    file.write_text(text)
    assert message in error_of(capsys, "train", "CartPole-v1", "--config", str(file))


def test_mistakes_with_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not exist" in error_of(capsys, "train", "CartPole-v1", "--config", str(tmp_path / "my.toml"))
    file = tmp_path / "my.toml"
    file.write_text("")
    assert "which environment?" in error_of(capsys, "train", "--config", str(file))
    assert "leave out --config" in error_of(capsys, "train", "--resume", "runs/x", "--config", str(file))
    folder = file.parent
    (folder / "run.toml").touch()
    assert f"to continue it: gpu-envs train --resume {folder}" in error_of(capsys, "train", str(folder))


def test_the_environment_of_a_file_needs_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('imported')")
    file = tmp_path / "my.toml"
    file.write_text(f'env = "{tmp_path}/mine.py:MINE"')
    assert "add --trust" in error_of(capsys, "train", "--config", str(file))
    assert "SystemExit: imported" in error_of(capsys, "train", "--config", str(file), "--trust")


def test_list_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    result = {item["id"]: item for item in json.loads(output_of(capsys, "list", "--json"))}
    assert sorted(result) == gpu_envs.ids()
    for name, facts in result.items():
        spec = gpu_envs.spec(name)
        params = spec.check_params({}, 1)
        assert (list(facts["params"]), list(facts["metrics"])) == (list(spec.params), list(spec.metrics))
        assert facts["max_episode_steps"] == spec.step_limit(params)
        roles = {role: item["agents"] for role, item in facts["roles"].items()}
        assert roles == (dict(spec.counts(params)) if isinstance(spec, gpu_envs.TeamSpec) else {"agent": 1})


def test_bench_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--device", "cpu", "--num-envs", "64", "--seconds", "0.01", "--json")
    one, team = json.loads(output_of(capsys, "bench", "CartPole-v1", "TagGridWorld-v0", *words))
    assert (one["environment"], one["devices"], one["replicas"]) == ("CartPole-v1", ["cpu"], 64)
    assert min(one["steps_per_s"]["many_a_launch"], one["steps_per_s"]["one_a_launch"]) > 0
    assert team["steps_per_s"]["many_a_launch"] is None


def test_train_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    words = ("--device", "cpu", "--num-envs", "8", "--horizon", "8", "--hidden", "8", "--total-steps", "128")
    result = json.loads(output_of(capsys, "train", "CartPole-v1", *words, "--json", "--run-dir", str(tmp_path / "run")))
    assert (result["reason"], result["steps"], result["iterations"]) == ("total_steps", 128, 2)
    assert set(result["returns"]) == {"agent"}
    assert result["run_dir"] == str(tmp_path / "run")


def test_resuming_a_complete_run_prints_a_notice(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", str(run), "--no-progress"]) == 0
    captured = capsys.readouterr()
    notice = f"{run} is already complete, with 128 steps, and no step was taken: to continue, give more --total-steps\n"
    assert captured.err == notice
    assert "128 in 2 updates" in captured.out
    assert "192 in 3 updates" in output_of(
        capsys, "train", "--resume", str(run), "--no-progress", "--total-steps", "192"
    )


def test_resuming_a_run_that_reached_its_target_prints_a_notice(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("train", "--resume", str(run), "--no-progress", "--json", "--total-steps=64_000")
    steps = json.loads(output_of(capsys, *words, "--target-return=1"))["steps"]
    assert 128 < steps < 64_000
    assert main([*words]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["steps"] == steps
    assert captured.err.endswith("and no step was taken: to continue, give --target-return none\n")
    assert main([*words[:-1], "--target-return=none", f"--total-steps={steps + 64}"]) == 0
    captured = capsys.readouterr()
    assert (json.loads(captured.out)["steps"], captured.err) == (steps + 64, "")


@pytest.mark.slow
def test_check_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--device", "cpu", "--no-sanitize", "--steps", "4", "--json")
    (report,) = json.loads(output_of(capsys, "check", "CartPole-v1", *words))
    assert report["id"] == "CartPole-v1"
    assert {check["outcome"] for check in report["checks"]} == {"passed", "skipped"}
    assert all(check["title"] and check["detail"] for check in report["checks"])


def test_eval_prints_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("eval", str(run), "--episodes", "16", "--device", "cpu")
    result = json.loads(output_of(capsys, *words, "--json"))
    assert result["greedy"] is True
    assert result["roles"]["agent"]["episodes"] == 16
    assert f"{result['roles']['agent']['mean']:.6g}" in output_of(capsys, *words)
    assert set(result["roles"]["agent"]["metrics"]) == set(gpu_envs.spec("CartPole-v1").metrics)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], list(COMMANDS)),
        (["tr"], ["train"]),
        (["train", "Cart"], ["CartPole-v0", "CartPole-v1", "CartPoleHidden-v1"]),
        (["train", "--conf"], ["--config"]),
        (["train", "CartPole-v0", "--preset", ""], ["default", "none"]),
        (["train", "--config", ""], []),
        (["train", "--run-dir", ""], []),
        (["train", "--algorithm", "p"], ["ppo", "pqn"]),
        (["train", "--runner.algorithm", "p"], ["ppo", "pqn"]),
        (["train", "--precision", "b"], ["bf16"]),
        (["tune", "--num-envs", ""], ["auto"]),
        (["eval", "--num-envs", ""], []),
        (["train", "--runner.fused", ""], ["on", "off"]),
        (["train", "--a.b.gae"], ["--a.b.gae-lambda"]),
        (["eval", "--runner.g"], []),
        (["bench", "--device", "cu"], ["cuda"]),
        (["completion", "b"], ["bash"]),
        (["no-such", "--"], []),
    ],
    ids=" ".join,
)
def test_completions(words: list[str], expected: list[str]) -> None:
    assert completions(words) == expected


def test_completions_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b", "a"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").touch()
    assert completions(["eval", "runs/"]) == completions(["play", "runs/"]) == ["runs/a", "runs/b"]
    assert completions(["play", "CartPole-v1"]) == ["CartPole-v1"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "gpu-envs"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpu_envs "$@"\n')
    program.chmod(0o755)
    script = output_of(capsys, "completion", "bash")
    script += '\nCOMP_WORDS=(gpu-envs train --preset); COMP_CWORD=2; _gpu_envs; echo "${COMPREPLY[*]}"'
    env = subprocess_env(PATH=f"{tmp_path}:/usr/bin:/bin")
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "--preset\n"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_complete_and_fits_a_narrow_terminal(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = output_of(capsys, *command.split(), "--help")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("--") or line.rstrip().endswith("-") for line in lines)
    assert output_of(capsys, *command.split(), "-h") == text
    if command not in ("", "train", "eval", "play"):
        assert text.startswith(f"usage: gpu-envs {command} ")
        assert "examples:" in text
        assert text.count(f"gpu-envs {command}") >= 3
        assert "--debug" in text


def test_help_calls_defaults_automatic_or_none(capsys: pytest.CaptureFixture[str]) -> None:
    """None means automatic for some settings and off for others."""
    text = " ".join(output_of(capsys, "train", "--help").split())
    assert "if minibatches are small. (default: automatic)" in text
    assert "stops; none: no target. (default: none)" in text
