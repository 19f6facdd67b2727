"""The mutants of ``python -m tests.mutants``, and how it decides that one is detected."""

import ast
from collections.abc import Sequence
from typing import Any

import pytest
from mutants import EQUIVALENT, ROOT, STUCK, Outcome, outcome_of
from mutations import Mutant, draw, of_header, of_python

PYTHON = '''
"""A docstring with 1 and a < b."""
from typing import TYPE_CHECKING

LIMIT = 7  # runs when the module is imported

def first(a: int | None = 3, *rest: float) -> int | None:
    """Adds 2, unless a < 0."""
    total: int | None = a + 5
    if a < 0 and total:
        raise ValueError(f"{a + 1} is below {0}", 4)
    rest.total = sum(zip(rest, strict=True))
    warn("deprecated", stacklevel=6)
    return -total

class Thing:
    size = 8

    def __repr__(self) -> str:
        return "thing" * 9

    def later(self, é=True):
        text = "é"; self.count += 10
        del é
        return text + "11"

if TYPE_CHECKING:
    def unseen(a):
        return a + 12
'''

HEADER = """\
// A comment: a + b < 3, and if (a) b = 4;
#include <cmath>
#define TWICE(x) \\
    ((x) + (x))
static_assert(sizeof(int) == 4,
              "an int has 5 bytes + 1");
template <int N = 1, class T = Wide<2>> int first(int a, float* b) {
    /* none here: 6 + 6
       nor here: 7 */
    if (!a && N < 3) return a + 1;
    b[0] = 0.5f * a;  // 8 + 8
    b[N] = 1e-05f;
    add(a, b);
    const float c = b[1];
    return a;
}
#if _for_gpu
int on_gpu(int a) { return a + 9; }
#else
int on_cpu(int a) { return a - 1; }
#endif
#ifdef __CUDACC__
#define G (1 + 2)
int on_gpu_too() { return 10 + 11; }
#endif
#if !_for_gpu
int host(int a) { return a * 3; }
#else
int device(int a) { return a * 12; }
#endif
"""


def pairs(mutants: Sequence[Mutant]) -> set[tuple[str, str]]:
    return {(each.before, each.after) for each in mutants}


def test_python_is_mutated_only_in_function_bodies() -> None:
    assert pairs(of_python("a.py", PYTHON)) == {
        ("a + 5", "(a - 5)"),
        ("5", "6"),
        ("a < 0 and total", "(not (a < 0 and total))"),
        ("a < 0 and total", "(a < 0 or total)"),
        ("a < 0", "(a <= 0)"),
        ("0", "1"),
        ('raise ValueError(f"{a + 1} is below {0}", 4)', "pass"),
        ("rest.total = sum(zip(rest, strict=True))", "pass"),
        ('warn("deprecated", stacklevel=6)', "pass"),
        ("-total", "(total)"),
        ("self.count += 10", "pass"),
        ("self.count += 10", "self.count -= 10"),
        ("10", "11"),
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x * (y + z) ** 2", "x * ((y + z) * 2)"),
        ("f(x & y == z)", "f(x | y == z)"),
        ("x if not y else z", "x if y else z"),
        ("x is not y", "x is y"),
        ("[x for x in y if x in z]", "[x for x in y if x not in z]"),
        ("x[1:]", "x[2:]"),
        ("f(k=True)", "f(k=False)"),
        ("1.5 // x", "1.5 * x"),
        ("x or y and z", "x and (y and z)"),
    ],
)
def test_python_mutants(before: str, after: str) -> None:
    text = f"def f(x, y, z):\n    é = 'é'; return {before}\n"
    expected = ast.dump(ast.parse(text.replace(before, after)))
    mutants = [ast.dump(ast.parse(each.applied(text.encode()))) for each in of_python("a.py", text)]
    assert ast.dump(ast.parse(text)) not in mutants
    assert mutants.count(expected) == 1


def test_headers_are_mutated_only_where_the_cpu_compiles_code() -> None:
    mutants = of_header("a.cuh", HEADER)
    assert pairs(mutants) == {
        ("(!a && N < 3)", "(!(!a && N < 3))"),
        ("!", ""),
        ("&&", "||"),
        ("<", "<="),
        ("3", "4"),
        ("+", "-"),
        ("1", "2"),
        ("b[0] = 0.5f * a;", ";"),
        ("b[N] = 1e-05f;", ";"),
        ("0", "1"),
        ("0.5", "1.5"),
        ("*", "/"),
        ("add(a, b);", ";"),
        ("-", "+"),
    }
    lines = HEADER.splitlines()
    for each in mutants:
        changed = each.applied(HEADER.encode()).decode().splitlines()
        assert [i for i, line in enumerate(changed, start=1) if line != lines[i - 1]] == [each.line], each


def test_each_function_and_header_line_is_drawn_at_most_once_in_the_order_of_the_seed() -> None:
    for mutants, scopes in ((of_python("a.py", PYTHON), 2), (of_header("a.cuh", HEADER), 7)):
        drawn = list(draw(mutants, 1))
        assert len(drawn) == len({each.scope for each in drawn}) == scopes
        assert drawn == list(draw(list(reversed(mutants)), 1))
        assert len({tuple(draw(mutants, seed)) for seed in range(5)}) > 1


def test_names_show_the_line_before_and_after() -> None:
    text = """
def f(x):
    return x + (1 -
                x)  # a comment
"""
    names = [each.name for each in of_python("a.py", text)]
    assert "a.py:3: return x + (1 - -> return x + (2 -" in names
    assert "a.py:3: 1 - x -> (1 + x)" in names
    header = "    int x = y + 1;  // a comment"
    assert "a.cuh:1: int x = y + 1; -> int x = y - 1;" in [each.name for each in of_header("a.cuh", header)]


STARTED: dict[str, Any] = {"started": "t::a", "at": 100.0}
PASSED: dict[str, Any] = {"case": "t::a", "outcome": "passed"}
FAILED: dict[str, Any] = {"case": "t::a", "outcome": "failed", "message": "no", "refused": False}
RUNNING: dict[str, Any] = {"started": "t::b", "at": 101.0}


@pytest.mark.parametrize(
    ("rows", "code", "expected"),
    [
        ([STARTED, PASSED], 0, Outcome("survived")),
        ([STARTED, FAILED], 1, Outcome("killed", "t::a", "no")),
        ([STARTED, {**FAILED, "refused": True}], 1, Outcome("refused", "t::a", "no")),
        ([STARTED, PASSED, RUNNING], -11, Outcome("killed", "t::b", "exit code -11")),
        ([], 4, Outcome("killed", "collection", "exit code 4")),
        ([STARTED, PASSED, {**RUNNING, "at": 200.0 - STUCK}], None, Outcome("timed out", "t::b")),
        ([STARTED, PASSED, {**RUNNING, "at": 199.0}], None, Outcome("not decided")),
    ],
)
def test_outcomes_of_runs(rows: list[dict[str, Any]], code: int | None, expected: Outcome) -> None:
    assert outcome_of(rows, code, 200.0) == expected


def test_equivalent_mutants_exist() -> None:
    """An entry whose line has changed would no longer apply."""
    for file, after in EQUIVALENT:
        mutants = (of_header if file.endswith(".cuh") else of_python)(file, (ROOT / file).read_text())
        assert after in {mutant.name.partition(" -> ")[2] for mutant in mutants}, (file, after)
