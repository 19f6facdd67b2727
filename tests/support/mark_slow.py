"""Marks tests ``slow`` or ``fast_cases(n)`` by the CPU time of their cases. From the root of the repository::

    pytest -n auto --costs=build/costs
    python tests/support/mark_slow.py build/costs

A function's first cases remain in ``make test`` while each costs at most ``--case`` seconds of CPU time, and
all of them together at most ``--function``. Existing marks of these two kinds are replaced.
"""

import argparse
import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

MARK = re.compile(r"@pytest\.mark\.(slow|fast_cases\(\d+\))\s*(#.*)?$")

Functions = dict[tuple[Path, str], list[pytest.Function]]
"""The cases of each test function that the first tier may run, in order."""


class CaseCollector:
    """Plugin that records the cases that pytest collects."""

    def __init__(self) -> None:
        self.functions: Functions = defaultdict(list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if isinstance(item, pytest.Function) and item.get_closest_marker("slow") is None:
                self.functions[item.path, item.nodeid.partition("[")[0]].append(item)


def read_costs(paths: list[Path]) -> dict[str, tuple[float, float]]:
    """Returns by case name its CPU seconds, and the CPU seconds of its shared fixtures."""
    lines = [line.split(" ", 2) for path in paths for line in path.read_text().splitlines()]
    return {name: (float(own), float(shared)) for own, shared, name in lines}


def mark_of(costs: list[tuple[float, float]], case_limit: float, function_limit: float) -> str | None:
    """Returns the mark of a function from its cases' costs (CPU seconds of case and fixtures), or ``None``."""
    total, quick = 0.0, 0
    for own, shared in costs:
        total += own
        if own + shared > case_limit or total > function_limit:
            break
        quick += 1
    if quick == len(costs):
        return None
    return f"@pytest.mark.fast_cases({quick})" if quick else "@pytest.mark.slow"


def without_marks(source: str) -> str:
    """Removes marks of these two kinds from a file's text."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    decorators = {decorator.lineno for node in functions for decorator in node.decorator_list}
    lines = enumerate(source.splitlines(keepends=True), 1)
    return "".join(line for number, line in lines if number not in decorators or not MARK.match(line.strip()))


def with_marks(source: str, marks: dict[str, str]) -> str:
    """Inserts marks above the named functions' decorators."""
    lines = source.splitlines(keepends=True)
    places = {
        min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]): marks[node.name]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name in marks
    }
    for number in sorted(places, reverse=True):
        indent = lines[number - 1][: -len(lines[number - 1].lstrip())]
        lines.insert(number - 1, f"{indent}{places[number]}\n")
    return "".join(lines)


def main() -> int:
    """Reads the costs, collects the tests and writes the marks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("costs", type=Path, nargs="+", help="files of `pytest --costs=FILE`")
    parser.add_argument("--case", type=float, default=1.0, help="maximum CPU seconds of a case (default: %(default)s)")
    parser.add_argument("--function", type=float, default=3.0, help="maximum of a function (default: %(default)s)")
    options = parser.parse_args()
    costs = read_costs(options.costs)
    for path in {Path(name.partition("::")[0]) for name in costs}:
        if path.is_file():
            path.write_text(without_marks(path.read_text()))
    collector = CaseCollector()
    pytest.main(["--collect-only", "--quiet", "--quiet", "-p", "no:cacheprovider"], plugins=[collector])
    marks: dict[Path, dict[str, str]] = defaultdict(dict)
    quick = 0.0
    for (path, name), cases in collector.functions.items():
        seconds = [costs.get(case.nodeid, (0.0, 0.0)) for case in cases]
        mark = None if cases[0].get_closest_marker("end_to_end") else mark_of(seconds, options.case, options.function)
        if mark is not None:
            marks[path][name.rpartition("::")[2]] = mark
        fast = len(cases) if mark is None else int(re.sub(r"\D", "", mark) or 0)
        quick += sum(own for own, _ in seconds[:fast])
    for path, functions in marks.items():
        path.write_text(with_marks(path.read_text(), functions))
    print(f"{sum(map(len, marks.values()))} functions are marked; the first tier takes {quick:.0f} s of CPU time.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
