"""The tutorial in ``docs/from-equations-to-a-policy.md`` runs, and its rules match its equations."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_tools import output_of
from harness import numpy_of, on_host, restored_registry
from outputs import same_output

import gpu_envs
from benchmarks.custom import tutorial
from gpu_envs.testing import check_environment

BLOCKS = tutorial.blocks(tutorial.EQUATIONS)
COMMANDS = [
    shlex.split(line) for block in BLOCKS if block.kind == "sh" for line in block.text.replace("\\\n", " ").splitlines()
]
PLACE = "economy.py:ECONOMY"
RUNS = ("runs/selfish", "runs/treaty")
MOST_LINES = 115
"""Maximum number of lines of rules and spec, without blank lines."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working folder, with the page's files."""
    folder = tmp_path_factory.mktemp("equations")
    tutorial.write(folder, BLOCKS)
    with pytest.MonkeyPatch.context() as patch, restored_registry():
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> None:
    """Makes the page's runs with very few steps."""
    pytest.importorskip("torch")
    from gpu_envs.cli import main

    runs = [words for words in COMMANDS if words[1] == "train"]
    assert tuple(words[words.index("--run-dir") + 1] for words in runs) == RUNS
    for words in runs:
        assert main([*words[1:], "--total-steps", "4096", "--device", "cpu", "--no-progress"]) == 0
        assert (folder / words[words.index("--run-dir") + 1] / "config.json").is_file()


def period(
    capital: np.ndarray, carbon: np.ndarray, actions: np.ndarray, params: dict[str, Any]
) -> tuple[dict[str, np.ndarray], np.ndarray, dict[str, np.ndarray]]:
    """Returns next state, rewards and metrics by the equations; capital ``[num_envs, N]``, carbon ``[num_envs, 1]``."""
    regions = capital.shape[1]
    saved, abated, offered = 0.1 * actions[..., 0], 0.2 * actions[..., 1], 0.2 * actions[..., 2:]
    gross = params["productivity"] * capital ** params["alpha"] / (1 + params["damage"] * carbon**2)
    output = (1 - params["abatement_cost"] * abated**2) * gross
    offers = offered * ((1 - saved) * output)[..., None] / regions * (1 - np.eye(regions))
    traded = np.minimum(offers, offers.swapaxes(1, 2))
    home = (1 - saved) * output - traded.sum(2)
    consumption = (np.sqrt(home) + params["taste"] * np.sqrt(traded).sum(2)) ** 2
    utility, solidarity = np.log(consumption), params["solidarity"]
    later = {
        "capital": (1 - params["depreciation"]) ** 5 * capital + saved * output,
        "carbon": ((1 - params["uptake"]) ** 5 * carbon[:, 0] + params["intensity"] * ((1 - abated) * gross).sum(1)),
        "saved": saved,
        "abated": abated,
        "consumption": consumption,
        "offers": offers,
        "traded": traded,
    }
    measured = {"saved": saved, "abated": abated, "traded": traded.sum(2) / output}
    return (
        later,
        (1 - solidarity) * utility + solidarity * utility.mean(1, keepdims=True),
        {"carbon": later["carbon"], **{name: values.mean(1) for name, values in measured.items()}},
    )


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-11), ("float32", 1e-5)])
def test_the_rules_match_the_equations(precision: str, tolerance: float, device: str) -> None:
    """Compares random steps from random initial states, with different solidarity in each replica."""
    count, periods = 7, 20
    changes: dict[str, Any] = {"taste": 0.7, "damage": 0.08, "uptake": 0.02, "solidarity": np.linspace(0, 1, count)}
    env: Any = gpu_envs.make(
        PLACE, count, device=device, output="numpy", precision=precision, statistics=True, **changes
    )
    params: dict[str, Any] = {**on_host(dict(env.params)), "solidarity": changes["solidarity"][:, None]}
    env.reset(seed=5)
    assert len(np.unique(numpy_of(env.state["capital"]))) == count * 5
    actions = np.random.default_rng(0).integers(0, 6, (periods, count, 5, 7))
    history = []
    for t in range(periods):
        expected, returns, measured = period(
            numpy_of(env.state["capital"]), numpy_of(env.state["carbon"])[:, None], actions[t], params
        )
        observations, rewards, terminations, truncations, infos = env.step({"region": actions[t]})
        for name, values in expected.items():
            np.testing.assert_allclose(numpy_of(env.state[name]), values, tolerance, tolerance, err_msg=name)
        np.testing.assert_allclose(rewards["region"], returns, tolerance, tolerance)
        assert (terminations["region"] == (t == periods - 1)).all()
        assert not truncations["region"].any()
        rows = np.broadcast_to(np.eye(5), (count, 5, 5))
        alike = [expected["carbon"][:, None], np.full((count, 1), (t + 1) / periods), expected["capital"]]
        shared = np.broadcast_to(np.concatenate(alike, 1)[:, None], (count, 5, 7))
        expected_rows = np.concatenate([rows, expected["offers"].swapaxes(1, 2), shared], 2)
        np.testing.assert_allclose(observations["region"], expected_rows, 1e-5, 1e-6)
        history.append(measured)
    np.testing.assert_allclose(infos["episode"]["carbon"], history[-1]["carbon"], 1e-5)
    for name in ("saved", "abated", "traded"):
        np.testing.assert_allclose(infos["episode"][name], np.mean([each[name] for each in history], 0), 1e-5)
    env.close()


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_it_passes_the_check() -> None:
    assert ["gpu-envs", "check", PLACE] in COMMANDS
    spec = gpu_envs.spec(PLACE)
    report = check_environment(spec, devices=["cpu"], num_envs=4, steps=25, sanitize=False, report=lambda _: None)
    assert not report.failures


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted({b.file for b in BLOCKS if b.file not in ("", "economy.py")}))
def test_script_runs(
    file: str, folder: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (folder / file).read_text()
    if "runs/" in text:
        request.getfixturevalue("trained")
    exec(compile(text, file, "exec"), {})
    printed = capsys.readouterr().out
    for block in BLOCKS:
        assert block.file != file or not block.output or same_output(block.output, printed), printed
    if file == "constants.py":  # the page's table contains the printed numbers
        printed_rows = re.findall(r"the best (.+): \[(.+)\], (\S+) \+-(\S+), carbon (\S+)", printed)
        assert len(printed_rows) == 2
        for name, plan, mean, interval, carbon in printed_rows:
            row = f"the best constant policy {name} | {', '.join(plan.split())} | {mean} ± {interval} | {carbon} |"
            assert row in tutorial.EQUATIONS.read_text(), printed


@pytest.mark.slow
@pytest.mark.usefixtures("trained")
def test_evaluations_show_the_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    evaluations = [words for words in COMMANDS if words[1] == "eval"]
    assert {words[2] for words in evaluations} == {*RUNS}
    returns = set()
    for words in evaluations:
        printed = output_of(capsys, *words[1:], "--episodes", "32", "--device", "cpu")
        rows = {line.split()[0]: line.split()[1:] for line in printed.splitlines()}
        assert [*rows][1:-1] == ["region", "carbon", "abated", "saved", "traded"]
        returns.add(rows["region"][0])
    assert len(returns) == len(evaluations)


def test_it_is_short() -> None:
    lines = [line for block in BLOCKS if block.file == "economy.py" for line in block.text.splitlines() if line.strip()]
    assert len(lines) < MOST_LINES
