"""The benchmark of environments from outside, at sizes that take seconds: what it compares, and what it writes."""

import functools
import json
from pathlib import Path

import pytest
from harness import DEVICES

import gpu_envs
from benchmarks import record
from benchmarks.custom import __main__ as custom
from benchmarks.record import BYTES
from gpu_envs import EnvSpec

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_each_is_measured_beside_its_like(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    short = functools.partial(custom.measure, sizes=(64, 65), seconds=0.001, compilations=1)
    monkeypatch.setattr(custom, "measure", short)
    custom.main(["--device", device, "--commit", "abc"])
    document = json.loads((tmp_path / f"custom_{device}.json").read_text())
    assert document["commit"] == "abc"
    results = document["results"]
    assert set(results["speed"]) == set(custom.BESIDE)
    for name, rows in results["speed"].items():
        assert [row["num_envs"] for row in rows] == [64, 65]
        for row in rows:
            assert row["beside"] == custom.BESIDE[name]
            assert row["bar"] == (0.90 if "Python" in name else 0.95)
            assert min(row["steps_per_s"], row["beside_steps_per_s"], row["share"]) > 0
    assert set(results["compile_s"]) == set(custom.COMPILED)
    assert min(results["compile_s"].values()) > 0
    assert set(results["more_in_python_s"]) == {"CartPoleInPython-v1", "LanderInPython-v0"}
    assert len(capsys.readouterr().out.splitlines()) == 2 * len(custom.BESIDE) + len(custom.COMPILED) + 2 + 1


def test_both_move_as_many_bytes() -> None:
    """State, elapsed and return read and written, action, observation, reward, flags."""
    custom.customs()
    for ours, theirs in custom.BESIDE.items():
        sizes = []
        for name in (ours, theirs):
            spec = gpu_envs.spec(name)
            assert isinstance(spec, EnvSpec)
            shape = spec.observation_space(spec.check_params({}, 1)).shape
            assert shape is not None
            sizes.append(8 * len(spec.fields) + 8 + 8 + 8 + 4 * shape[0] + 4 + 2)
        assert sizes[0] == sizes[1], ours
        assert sizes[1] == BYTES.get(theirs, sizes[1])
