"""Tests of the command line: every setting has an option, presets and options combine, mistakes give messages."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainers import run_of

import gpu_envs
from gpu_envs.cli import INTERRUPTED, MISTAKE, OK, commands, main
from gpu_envs.cli import report as reports
from gpu_envs.cli.settings import flag_of, setting_options
from gpu_envs.errors import DivergedError
from gpu_envs.training.algorithms import ALGORITHMS
from gpu_envs.training.policy import algorithms_with
from gpu_envs.training.record.reports import Result
from gpu_envs.training.recurrent_settings import LSTM, Memory
from gpu_envs.training.run import NAMES, POLICY_SETTINGS, SETTINGS, Run
from gpu_envs.training.schedule import Schedule
from gpu_envs.training.settings import Setting


class Trainer:
    """A fake trainer that records its calls."""

    def __init__(self, reason: str = "total_steps", error: BaseException | None = None) -> None:
        self.calls: list[Any] = []
        self.reason = reason
        self.error = error
        self.returns = {"agent": 487.25}

    def result(self, run_dir: str | None) -> Result:
        if self.error is not None:
            raise self.error
        return Result(run_dir, self.reason, iterations=12, steps=3_000_000, seconds=1.5, returns=self.returns)

    def train(self, config: Run, *, progress: bool | None = None) -> Result:
        self.calls.append((config, progress))
        return self.result("runs/my run")

    def resume(self, run: str, *, progress: bool | None = None, **changes: Any) -> Result:
        self.calls.append((run, changes.get("total_steps"), progress))
        return self.result(run)

    def evaluate(self, run: str, **options: Any) -> dict[str, SimpleNamespace]:
        self.calls.append((run, options))
        row = SimpleNamespace(mean=4.5, std=2.0, interval=0.25, length=77.0, episodes=options["episodes"], metrics={})
        return {"tagger": row, "runner": row}


@pytest.fixture(autouse=True)
def presets(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    """Replace the presets of the package, which may change."""
    values = {
        "CartPole-v1": {
            "default": {"num_envs": 256, "learning_rate": "0:0.003,1:0", "params": {"gravity": 9.0, "length": 0.6}},
            "big": {"num_envs": 65536, "hidden": (128,), "graphs": False},
            "pqn": {"algorithm": "pqn", "num_envs": 32},
        },
        "Pendulum-v1": {"slow": {"gamma": 0.5, "x.gamma": 0.25, "x.hidden": (7, 8)}},
    }
    monkeypatch.setattr("gpu_envs.cli.train.PRESETS", values)
    return values


def train_config(*words: str) -> Run:
    trainer = Trainer()
    assert main(["train", *words], trainer=trainer) == OK
    ((config, _),) = trainer.calls
    assert isinstance(config, Run)
    return config


def refused(capsys: pytest.CaptureFixture[str], *words: str, trainer: Trainer) -> str:
    assert main(list(words), trainer=trainer) == MISTAKE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("gpu-envs: error: ")
    assert captured.err.count("gpu-envs: error: ") == 1
    assert "Traceback" not in captured.err
    return captured.err


# --- settings ---

OTHER_VALUES: Mapping[str, Any] = {
    "device": "cuda:3",
    "gradient_steps": 36,
    "policy_delay": 4,
    "target_role": "runner",
    "run_dir": "some where/else",
}
"""Values of settings for which ``other_value`` finds none: strings, and integers that must divide one another."""


def other_value(setting: Setting) -> Any:
    """Return an allowed value that is not the default."""
    if setting.name in OTHER_VALUES:
        return OTHER_VALUES[setting.name]
    if setting.kind is str:
        return setting.choices[1]
    if setting.kind is bool:
        return not setting.default
    if setting.kind is Schedule:
        return Schedule(((0.0, 1 / 3), (0.25, 1e-7), (1.0, 0.0)))
    if setting.kind is Memory:
        return LSTM(7)
    if setting.kind is int:
        return 3 if setting.default is None else setting.default + 5
    if setting.kind is float:
        return 0.3 if setting.default is None else setting.default / 3
    return ("a.b:C",) if setting.kind == tuple[str, ...] else (7, 8, 9)


def arguments_for(setting: Setting, value: Any) -> list[str]:
    flag = flag_of(setting.name)
    if setting.kind is bool and value is not None:
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    return [f"{flag}=none"] if value is None else [flag, setting.format(value)]


def setting_value(run: Run, name: str) -> Any:
    """Return a setting by its flat name."""
    return next(getattr(part, name) for part in (run, run.algorithm, run.network) if hasattr(part, name))


def to_json(value: Any) -> Any:
    return str(value) if isinstance(value, Schedule | Memory) else list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", setting_options())
def test_every_setting_has_an_option(name: str) -> None:
    setting = SETTINGS[name]
    value, algorithm = other_value(setting), (*algorithms_with(name), "ppo")[0]
    words = ["CartPole-v1", "--preset", "none", "--algorithm", algorithm]
    config = train_config(*arguments_for(setting, value), *words)
    assert setting_value(config, name) == value
    assert type(setting_value(config, name)) is type(value)
    assert config.flat() == run_of(env="CartPole-v1", algorithm=algorithm).flat() | {name: to_json(value)}
    assert Run.from_flat(json.loads(json.dumps(config.flat()))) == config
    if setting.optional:
        config = train_config(*words, *arguments_for(setting, value), *arguments_for(setting, None))
        assert setting_value(config, name) is None


@pytest.mark.parametrize("name", POLICY_SETTINGS)
def test_every_policy_setting_has_an_option(name: str) -> None:
    """Also with another algorithm than that of the run."""
    algorithm = "pqn" if name == "algorithm" else (*algorithms_with(name), "ppo")[0]
    value = "pqn" if name == "algorithm" else other_value(SETTINGS[name])
    shown = value if name == "algorithm" else SETTINGS[name].format(value)
    words = [f"--a.b.{name.replace('_', '-')}={shown}"]
    config = train_config("CartPole-v1", "--preset", "none", "--a.b.algorithm", algorithm, *words)
    others = run_of(env="CartPole-v1", **{"a.b.algorithm": algorithm})
    assert config.flat() == others.flat() | {f"a.b.{name}": to_json(value)}
    assert Run.from_flat(json.loads(json.dumps(config.flat()))).for_policy("a.b") == config.for_policy("a.b")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_an_option(name: str) -> None:
    expected = run_of(env="CartPole-v1", algorithm=name)
    assert train_config("CartPole-v1", "--preset", "none", "--algorithm", name) == expected


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--total-steps", "1e6"], "total_steps", 1_000_000),
        (["--total-steps=10_000"], "total_steps", 10_000),
        (["--learning-rate", "0.5"], "learning_rate", Schedule(((0.0, 0.5),))),
        (["--target-return", "-200"], "target_return", -200.0),
        (["--target-return", "-1e3"], "target_return", -1000.0),
        (["--target-return", "-.5e1"], "target_return", -5.0),
        (["--entropy-weight", "-1e-3"], "entropy_weight", Schedule(((0.0, -1e-3),))),
        (["--hidden", "32"], "hidden", (32,)),
        (["--run-dir", ""], "run_dir", ""),
        (["--graphs", "--graphs=none"], "graphs", None),
        (["--param", "a=1", "--param", "a=2"], "params", {"a": 2}),
        (["--param", "a="], "params", {"a": ""}),
        (["--param=a=none", "--param=b=1e-3", "--param=c=False"], "params", {"a": "none", "b": 1e-3, "c": False}),
        (
            ["--param", "a=-3.5", "--param", "b=7", "--param", "c=semi-implicit"],
            "params",
            {"a": -3.5, "b": 7, "c": "semi-implicit"},
        ),
        (["--policy", "tagger=3"], "policies", {"tagger": "3"}),
        (
            ["--policy=a=frozen:runs/a=b:a", "--policy", "b_0=random"],
            "policies",
            {"a": "frozen:runs/a=b:a", "b_0": "random"},
        ),
        (["--a.gae-lambda", "0.5"], "a.gae_lambda", 0.5),
        (["--a.fused", "true", "--a.fused=off"], "a.fused", False),
        (["--a.fused=none", "--fused"], "a.fused", None),
        (["--a.entropy-weight", "-1e-3"], "a.entropy_weight", "-0.001"),
        (["--a.hidden=7,8"], "a.hidden", [7, 8]),
    ],
)
def test_values_are_read(words: list[str], name: str, value: Any) -> None:
    run = train_config("CartPole-v1", "--preset", "none", *words)
    assert (run.flat()[name] if "." in name else setting_value(run, name)) == value


# --- presets ---


def test_options_override_presets_and_presets_override_defaults() -> None:
    config = train_config("CartPole-v1", "--num-envs", "8", "--param", "length=0.7", "--param", "tau=0.01")
    assert config.num_envs == 8  # the option's
    assert config.algorithm.learning_rate == Schedule(((0.0, 0.003), (1.0, 0.0)))  # the preset's
    assert config.horizon == run_of(env="CartPole-v1").horizon  # the default
    assert config.params == {"gravity": 9.0, "length": 0.7, "tau": 0.01}  # by name
    assert (
        train_config("CartPole-v1", "--preset", "default")
        == train_config("CartPole-v1")
        == train_config("gpu_envs/CartPole-v1")
    )
    big = train_config("CartPole-v1", "--preset", "big", "--graphs=none")
    assert (big.num_envs, big.network.hidden, big.graphs) == (65536, (128,), None)
    assert train_config("CartPole-v1", "--preset", "none") == run_of(env="CartPole-v1")


def test_presets_may_set_single_policies(presets: dict[str, Any]) -> None:
    values = {"fox.gamma": 0.5, "fox.hidden": [8], "tagger.gamma": 0.9}
    presets["TagGridWorld-v0"] = {"default": {"policies": {"runner": "fox"}, **values}}
    for words, expected in (
        ([], values),
        (["--fox.gamma=0.6"], values | {"fox.gamma": 0.6}),
        (["--gamma=0.7"], {"fox.hidden": [8]}),  # the option overrides the preset
        (["--policy=runner=random"], {"tagger.gamma": 0.9}),
        (["--policy=tagger=fox"], {"fox.gamma": 0.5, "fox.hidden": [8]}),
        (["--preset=none"], {}),
    ):
        settings = train_config("TagGridWorld-v0", *words).flat()
        assert {name: value for name, value in settings.items() if "." in name} == expected


# --- help ---


def unwrapped(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_help_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """In the group of its algorithms; all settings but six are options."""
    assert {*setting_options()} == {*NAMES} - {"env", "algorithm", "params", "policies", "gpus", "since"}
    assert main(["train", "--help"]) == OK
    text = capsys.readouterr().out
    assert not re.search(r"``|\bNone\b|\bTrue\b|\bFalse\b|\bPython a\b", text)
    for flag in ("--algorithm", "--param", "--policy", "--POLICY.SETTING"):
        assert re.search(rf"{re.escape(flag)} [A-Z=]+ .* \(default: (ppo|none)\)", unwrapped(text)), flag
    groups = text.split("\nsettings of ")
    assert groups[1].startswith("the run:")
    for name, setting in setting_options().items():
        flag, doc = flag_of(name), re.sub(r"\bNone\b", "none", setting.doc)
        limits = r"( (From|Above) \S+ to \S+\.)?"
        assert re.search(rf"{flag}\b.* {re.escape(doc)}{limits} \(default: ", unwrapped(text)), name
        (group,) = (block for block in groups[1:] if re.search(rf"^  {flag}[ ,\n]", block, re.MULTILINE))
        title, _, _ = group.partition(" only:")
        assert {*title.replace(" and ", ", ").split(", ")} == {*algorithms_with(name)} or (
            groups[1] is group and not algorithms_with(name)
        )


def test_help_shows_the_presets_values(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*words: str) -> str:
        assert main(["train", *words]) == OK
        return unwrapped(capsys.readouterr().out)

    assert "(preset default: 256)" in shown("-h", "CartPole-v1")
    assert "(preset default: gravity=9.0 length=0.6)" in shown("CartPole-v1", "--help", "--num-envs", "7")
    assert "name. (preset slow: x.gamma=0.25 x.hidden=7,8)" in shown("Pendulum-v1", "--preset", "slow", "--help")
    big = shown("CartPole-v1", "--preset", "big", "--help")
    assert all(f"(preset big: {value})" in big for value in ("65536", "128", "off"))
    assert "(preset" not in shown("CartPole-v1", "--preset", "none", "--help")
    assert "the first of these that is given: 1. the option" in shown("--help")
    assert "(preset pqn: 32)" in shown("CartPole-v1", "--algorithm", "pqn", "--help")


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == OK
    assert capsys.readouterr().out == f"gpu_envs {gpu_envs.__version__}\n"
    assert main(["--help"]) == OK
    text = capsys.readouterr().out
    assert all(re.search(rf"^  {name} +\w+", text, re.MULTILINE) for name in commands.COMMANDS)
    assert main([]) == MISTAKE
    assert "usage" in capsys.readouterr().err


# --- mistakes ---


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "no command 'trian'. Did you mean 'train'?"),
        (["--verison"], "'--verison'"),
        (["train"], "which environment?"),
        (["train", "CartPol-v1"], "Did you mean 'CartPole-v1'?"),
        (["train", "CartPole-v1", "Pendulum-v1"], "one environment ID is expected; got 'CartPole-v1' and 'Pend"),
        (["train", "CartPole-v1", "--num-env", "7"], "no option '--num-env'. Did you mean '--num-envs'?"),
        (["train", "--num-env=7"], "no option '--num-env'. Did you mean '--num-envs'?"),
        (["train", "CartPole-v1", "--preset", "bigg"], "no preset 'bigg'. Did you mean 'big'?"),
        (["train", "Acrobot-v1", "--preset", "x"], "no preset 'x'. There are: none"),
        (["train", "CartPole-v1", "--num-envs", "many"], "--num-envs: 'many' is not an integer, nor auto"),
        (["train", "CartPole-v1", "--num-envs", "1.5"], "--num-envs: '1.5' is not an integer"),
        (["train", "CartPole-v1", "--num-envs", "inf"], "--num-envs: 'inf' is not an integer"),
        (["train", "CartPole-v1", "--num-envs"], "--num-envs: expected one argument"),
        (["train", "CartPole-v1", "--gamma", "high"], "--gamma: 'high' is not a number"),
        (["train", "CartPole-v1", "--value-clip", "x"], "--value-clip: 'x' is not a number, nor none"),
        (["train", "CartPole-v1", "--algorithm", "dpg"], "algorithm is 'dpg'. Did you mean 'ddpg'? Allowed: ppo, a2c"),
        (
            ["train", "CartPole-v1", "--activation", "rellu"],
            "activation is 'rellu'. Did you mean 'relu'? Allowed: tanh",
        ),
        (
            ["train", "CartPole-v1", "--noise.gamma", "1"],
            "a policy 'noise', which is the name of a setting; give the policy another name",
        ),
        (["train", "CartPole-v1", "--hidden", "a,b"], "--hidden: 'a,b' is not a list of integers such as 64,64"),
        (["train", "CartPole-v1", "--learning-rate", "fast"], "--learning-rate/--lr: 'fast' is not a schedule"),
        (["train", "CartPole-v1", "--param", "gravity"], "--param: 'gravity' is not NAME=VALUE"),
        (["train", "CartPole-v1", "--policy", "=x"], "--policy: '=x' is not ROLE=NAME"),
        (["train", "CartPole-v1", "--a.gama", "1"], "a.gama: the setting 'gama' does not exist. Did you mean 'gamma'?"),
        (
            ["train", "CartPole-v1", "--a.device", "cpu"],
            "a.device: the setting 'device' applies to the whole run. A policy can",
        ),
        (["train", "CartPole-v1", "--a.gamma"], "--a.gamma has no value: give --a.gamma X"),
        (["train", "CartPole-v1", "--a.fused", "--seed", "3"], "--a.fused has no value: give --a.fused on|off"),
        (["train", "CartPole-v1", "--a.gamma", "x"], "--a.gamma: 'x' is not a number"),
        (["train", "CartPole-v1", "--a.gamma", "2"], "policy 'a': gamma is 2.0; give a number from 0 to 1"),
        (["train", "CartPole-v1", "--a.fused=1"], "--a.fused: '1' is neither on nor off"),
        (["train", "CartPole-v1", "--a.algorithm", "sacc"], "policy 'a': algorithm is 'sacc'. Did you mean 'sac'?"),
        (
            ["train", "CartPole-v1", "--a.tau", "0.1"],
            "policy 'a': ppo has no tau, which is a setting of sac, td3 and ddpg",
        ),
        (
            ["train", "CartPole-v1", "--tau", "0.1", "--a.algorithm=sac"],
            "ppo has no tau, which is a setting of sac, td3",
        ),
        (["train", "CartPole-v1", "--.gamma", "1"], "no option '--.gamma'"),
        (["train", "--resume", "runs/x", "--a.gamma", "1"], "leave out --a.gamma"),
        (["train", "--resume", "runs/x", "--a.device", "cpu"], "leave out --a.device"),
        (["train", "CartPole-v1", "--stagger=none"], "--stagger"),
        (["train", "CartPole-v1", "--resume", "runs/x"], "leave out CartPole-v1"),
        (["train", "--resume", "runs/x", "--param", "a=1", "--seed", "3"], "leave out --param, --seed"),
        (["train", "--resume", "runs/x", "--preset", "big"], "leave out --preset"),
        (["eval"], "which run?"),
        (["eval", "a", "b"], "one run directory is expected"),
        (["eval", "a", "--episodes", "0"], "--episodes is 0"),
        (["eval", "a", "--greedy", "--sampled"], "not allowed with"),
        (["eval", "a", "--policy", "runner"], "--policy: 'runner' is not ROLE=NAME"),
        (["train", "CartPole-v1", "--target-return", "-1x"], "--target-return: '-1x' is not a number"),
        (["train", "CartPole-v1", "-1e3"], "no option '-1e3'"),
    ],
)
def test_messages_of_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()
    assert message in refused(capsys, *words, trainer=trainer)
    assert trainer.calls == []


USER_ERRORS = (
    *(ValueError, TypeError, FileNotFoundError, FileExistsError, BlockingIOError, NotADirectoryError, MemoryError),
    *(gpu_envs.UnknownEnvironmentError, gpu_envs.NoCompilerError, DivergedError),
)
"""Errors that the user can fix; a failed import of torch is one, too."""


@pytest.mark.parametrize(
    "error",
    [
        *(kind("what is wrong") for kind in USER_ERRORS),
        ImportError("what is wrong", name="torch"),
        ModuleNotFoundError("what is wrong", name="torch.distributed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_user_errors_have_no_traceback(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer(error=error)
    assert "what is wrong" in refused(capsys, "train", "CartPole-v1", trainer=trainer)
    with pytest.raises(type(error)):
        main(["train", "CartPole-v1", "--debug"], trainer=trainer)


@pytest.mark.parametrize(
    "error", [RuntimeError("a fault"), KeyError("x"), ImportError("x", name="numpy"), OSError("x")]
)
def test_other_errors_have_a_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        main(["train", "CartPole-v1"], trainer=Trainer(error=error))


FEW = ("--preset=none", "--num-envs=2", "--horizon=2", "--device=cpu", "--threads=1", "--minibatches=1")


def test_a_missing_run_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    missing = tmp_path / "none"
    for words, option in ((["eval"], "RUN"), (["train", "--resume"], "--resume")):
        for run_argument in (str(missing), f"{missing}/"):
            assert main([*words, run_argument]) == MISTAKE
            assert f"{option}: the run directory {missing} does not exist" in capsys.readouterr().err
    file = tmp_path / "file"
    file.touch()
    assert main(["train", "CartPole-v1", *FEW, "--run-dir", str(file)]) == MISTAKE
    assert f"the run directory cannot be {file}, because {file} is a file" in capsys.readouterr().err


# --- reports and exit codes ---


def test_training_prints_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "CartPole-v1"], trainer=Trainer("target_return")) == OK
    text = capsys.readouterr().out
    for part in ("487.25", "3,000,000", "12 updates", "1.50 s", "2,000,000 steps/s", "runs/my run", "target return"):
        assert part in text
    assert "gpu-envs eval 'runs/my run'" in text  # quoted for a shell
    assert "gpu-envs play 'runs/my run'" in text
    assert "--resume" not in text


def test_printed_commands_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They name the program by a path if PATH does not have it: a virtual environment need not be active."""
    program = tmp_path / "my venv" / "bin" / "gpu-envs"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for argv0, command in (
        (str(program), "'my venv/bin/gpu-envs'"),
        ("my venv/bin/gpu-envs", "'my venv/bin/gpu-envs'"),
        ("/somewhere/gpu_envs/__main__.py", f"{sys.executable} -m gpu_envs"),
        ("/somewhere/else.py", "gpu-envs"),
    ):
        monkeypatch.setattr(sys, "argv", [argv0])
        assert f"  {command} play runs/x" in reports.training_report(Trainer().result("runs/x"))
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr(sys, "argv", [str(program)])
    assert reports.program_command() == "gpu-envs"


def test_an_interrupted_run_prints_how_to_resume(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "CartPole-v1"], trainer=Trainer("interrupted")) == INTERRUPTED
    assert "gpu-envs train --resume 'runs/my run'" in capsys.readouterr().out
    assert main(["train", "CartPole-v1"], trainer=Trainer(error=KeyboardInterrupt())) == INTERRUPTED
    assert capsys.readouterr().err == "gpu-envs: interrupted\n"


def test_a_run_without_a_folder_in_which_no_episode_ended(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()
    trainer.returns = {"tagger": float("nan"), "runner": 1.5}
    assert main(["train", "--resume", ""], trainer=trainer) == OK
    text = capsys.readouterr().out
    assert re.search(r"return of tagger +no episode ended\n", text)
    assert "nan" not in text
    assert "eval" not in text


@pytest.mark.parametrize(("words", "progress"), [([], None), (["--progress"], True), (["--no-progress"], False)])
def test_resuming(words: list[str], progress: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()
    assert main(["train", "--resume", "runs/x", *words], trainer=trainer) == OK
    assert main(["train", *words, "--total-steps", "1e9", "--resume", "runs/x"], trainer=trainer) == OK
    assert trainer.calls == [("runs/x", None, progress), ("runs/x", 10**9, progress)]
    resumed = capsys.readouterr().out
    assert main(["train", "CartPole-v1", *words], trainer=trainer) == OK
    assert trainer.calls[-1][1] is progress
    if reports.process_seconds() is not None:  # the training time includes the time before
        assert ("since it resumed" in resumed, "since the start" in resumed) == (True, False)
        assert "since the start" in capsys.readouterr().out


def test_evaluating(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()
    assert main(["eval", "runs/x"], trainer=trainer) == OK
    defaults = {"episodes": 1000, "greedy": True, "device": "auto", "seed": None, "num_envs": None, "policies": {}}
    defaults["params"] = {}
    assert trainer.calls.pop() == ("runs/x", defaults | {"trust": False, "progress": None})
    table = capsys.readouterr().out
    for part in ("tagger", "runner", "4.5", "0.25", "77", "1,000", "most likely"):
        assert part in table
    words = ["--episodes", "5", "--sampled", "--device", "cpu", "--seed", "9", "runs/x", "--num-envs", "4", "--trust"]
    words += ["--no-progress", "--param", "length=0.4"]
    assert main(["eval", *words], trainer=trainer) == OK
    expected = {"episodes": 5, "greedy": False, "device": "cpu", "seed": 9, "num_envs": 4, "policies": {}}
    expected["params"] = {"length": 0.4}
    assert trainer.calls.pop() == ("runs/x", expected | {"trust": True, "progress": False})
    words = ["--policy", "runner=random", "--policy", "tagger_1=frozen:y:z"]
    assert main(["eval", "runs/x", *words], trainer=trainer) == OK
    assert trainer.calls.pop()[1]["policies"] == {"runner": "random", "tagger_1": "frozen:y:z"}
    assert "(the most likely actions; random actions of runner)" in capsys.readouterr().out
    assert main(["eval", "runs/x", "--policy", "runner=random", "--policy", "tagger=random"], trainer=trainer) == OK
    assert "(random actions)" in capsys.readouterr().out


def test_process_seconds() -> None:
    first = reports.process_seconds()
    if first is None:
        pytest.skip("the operating system does not say")
    second = reports.process_seconds()
    assert second is not None
    assert 0 < first <= second < 24 * 3600
