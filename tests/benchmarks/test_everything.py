"""The parts of ``benchmarks.everything`` measure every result, and continue after a failure."""

import os
import subprocess
from typing import Any

import pytest

from benchmarks import everything, record
from benchmarks.adapters import __main__ as adapters
from benchmarks.peers import __main__ as peers
from benchmarks.peers.workloads import PEERS
from benchmarks.training import __main__ as training

PARSERS = {"training": training.parser, "peers": peers.parser, "adapters": adapters.parser}
FILES = {"throughput": ("throughput", "scaling"), "custom": ("custom",)}
"""Files, without the device, of commands whose files have no sections."""


def test_every_section_is_measured() -> None:
    measured: set[tuple[str, str, str]] = set()
    for needs, command in ((part.needs, command) for part in everything.PARTS for command in part.commands):
        module, *arguments = command.split()
        device = arguments[arguments.index("--device") + 1]
        assert (device == "cpu") == (needs == everything.CPU)
        if module not in PARSERS:
            measured |= {(name, device, "") for name in FILES[module]}
            continue
        options = PARSERS[module]().parse_args(arguments)
        default = {"peers": tuple(PEERS), "adapters": adapters.DEFAULT_SECTIONS[device], "training": ()}[module]
        measured |= {(module, device, section) for section in options.only or default}
    assert {section for module, _, section in measured if module == "training"} == {*training.SECTIONS}
    assert {section for module, device, section in measured if (module, device) == ("peers", "cuda")} == {*PEERS}
    for name, _ in everything.commits():
        file, _, section = name.partition(" ")
        module, _, device = file.removesuffix(".json").rpartition("_")
        assert section == "ours" or (module, device, section) in measured, name


def test_a_part_continues_after_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    started: list[list[str]] = []

    def run(words: list[str], **_: Any) -> Any:
        started.append(words[1:])
        return subprocess.CompletedProcess(words, len(started) % 2)

    monkeypatch.setattr(subprocess, "run", run)
    number = [part.commands[0] for part in everything.PARTS].index("throughput --device cuda") + 1
    assert everything.run_part(number, ["--commit", "abc"]) == 1
    assert [words[1] for words in started] == ["benchmarks.throughput", "benchmarks.custom"]
    assert all(words[-2:] == ["--commit", "abc"] for words in started)
    assert [line.split(" in ")[0] for line in capsys.readouterr().out.splitlines()] == ["failed (1)", "done"]


def test_results_of_other_commits_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    everything.list_parts()
    out = capsys.readouterr().out
    for number, part in enumerate(everything.PARTS, 1):
        heading = out.index(f"On {part.needs}:")
        assert heading < out.index(f"{number:4}  {part.measures}") < out.index(part.commands[-1], heading)
    assert f"of {len(list(everything.commits()))} results are of commit" in out


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity")
def test_results_name_the_cores_that_the_process_may_use() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(cores)])
    try:
        assert record.provenance("", None, "throughput")["machine"]["cores"] == 1
    finally:
        os.sched_setaffinity(0, cores)
