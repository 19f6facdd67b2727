"""Mutation tests: makes small mistakes in the package, and counts how many of them the tests detect.

``python -m tests.mutants`` measures once, in ``build/mutants/``, which case executes which line and compiles which
header. Then it tries each mutant in a copy of the tree: against the cases of ``make test`` that execute its line, and
if it survives, against the cases of ``make test-all``. The next run continues an interrupted one.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from coverage import CoverageData

sys.path.insert(0, str(Path(__file__).parent))  # as pytest does

from mutations import Mutant, draw, of_header, of_python

ROOT = Path(__file__).resolve().parents[1]
SUPPORT = "tests/support"
BUILD = ROOT / "build" / "mutants"
TREE, MAP, CACHE = BUILD / "tree", BUILD / "map", BUILD / "cache"

QUICK_LIMIT, FULL_LIMIT = 60.0, 120.0
"""Seconds for the cases of the first tier, and for the others."""

STUCK = 20
"""Seconds after which a case that still runs at the limit may be stuck in the mutated code."""

EQUIVALENT: Mapping[tuple[str, str], str] = {
    (
        "gpu_envs/rendering/painter.py",
        "kinds = np.broadcast_to(kinds, pixels.shape[:3]).reshape(len(world), -2)",
    ): "NumPy's reshape treats any negative number as -1",
    (
        "kernels/dialect/python.cuh",
        "FN int truncated(double x) { return x >= 1 || x <= -1 ? int(clip(x, -2147483649.0, 2147483647.0)) : 0; }",
    ): "the conversion gives the minimum int for any number below it",
    (
        "gpu_envs/translation/order.py",
        "return (isinstance(end, tree.Constant) and (isinstance(end, tree.Field) and end.of in ('', 'p')))",
    ): "a constant end is copied into a variable",
}
"""Mutants that change no result on any device, by file and line with the mistake, and why; they do not count."""

Line: TypeAlias = tuple[str, int]
Cases: TypeAlias = dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Outcome of running cases against a mutant."""

    kind: str
    """killed, refused by the compiler, timed out, survived, not decided in N s, or error."""
    case: str = ""
    message: str = ""

    @property
    def detected(self) -> bool:
        """Whether the tests detected the mutant."""
        return self.kind in ("killed", "timed out")

    def __str__(self) -> str:
        return f"{self.kind}{f' by {self.case}' if self.case else ''}"


class Runs:
    """Runs pytest in copies of the tree, and tracks the running processes."""

    def __init__(self) -> None:
        self._alive: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._ended = False

    def pytest(
        self, tree: Path, cache: Path, arguments: Sequence[str], limit: float, log: Path, **env: str
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Returns the cases' records and the exit code, None after a timeout.

        Raises:
            RuntimeError: The run imported the package from somewhere else.
        """
        records = log.with_suffix(".records")
        records.unlink(missing_ok=True)
        paths = [str(tree), str(tree / SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
        env |= {"PYTHONPATH": os.pathsep.join(paths), "MUTANTS_RECORDS": str(records)}
        env |= {"GPU_ENVS_CACHE_DIR": str(cache), "MUTANTS_COMPILER": str(TREE / SUPPORT / "unoptimised-c++")}
        env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
        options = ["-q", "--tb=short", "-n", "0", "-p", "no:cacheprovider", "-p", "records_headers"]
        command = [sys.executable, "-m", "pytest", *options, "-o", f"faulthandler_timeout={STUCK}", *arguments]
        with log.open("wb") as out, self._lock:
            if self._ended:
                raise KeyboardInterrupt
            process = subprocess.Popen(command, cwd=tree, env=env, stdout=out, stderr=out, start_new_session=True)
            self._alive.add(process)
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            self._kill(process)
            self._alive.discard(process)
        if self._ended:
            raise KeyboardInterrupt
        text = records.read_text() if records.exists() else ""
        rows = [json.loads(line) for line in text.split("\n")[:-1]]  # the last one may be cut off
        wrong = [row["package"] for row in rows if not Path(row.get("package", tree)).is_relative_to(tree)]
        if wrong:
            raise RuntimeError(f"the run in {tree} imported gpu_envs from {wrong[0]}")
        return rows, code

    @contextlib.contextmanager
    def workers(self, jobs: int) -> Iterator[concurrent.futures.ThreadPoolExecutor]:
        """Context with threads for runs, which are killed if the block raises an exception."""
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            try:
                yield pool
            except BaseException:
                with self._lock:
                    self._ended = True
                    for process in list(self._alive):
                        self._kill(process)
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # including the case's child processes
        process.wait()


def outcome_of(rows: Sequence[Mapping[str, Any]], code: int | None, now: float) -> Outcome:
    """Returns the outcome from a run's records and exit code, None after a timeout at ``now``."""
    ended = {row["case"] for row in rows if "case" in row}
    running = next((row for row in rows if row.get("started", "") not in ({""} | ended)), None)
    failed = next((row for row in rows if row.get("outcome") == "failed"), None)
    if failed is not None:
        return Outcome("refused" if failed["refused"] else "killed", failed["case"], failed["message"])
    if code is None:
        stuck = running is not None and now - running["at"] >= STUCK
        return Outcome("timed out", running["started"]) if running and stuck else Outcome("not decided")
    if code == 0:
        return Outcome("survived")
    return Outcome("killed", running["started"] if running else "collection", f"exit code {code}")


def tracked() -> list[str]:
    """Returns the files that git tracks."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(name for name in done.stdout.split("\0") if (ROOT / name).is_symlink() or (ROOT / name).is_file())


def digest(names: Sequence[str]) -> str:
    """Returns a digest of the tree's files."""
    texts = ((ROOT / name).read_bytes() for name in names if not (ROOT / name).is_symlink())
    return hashlib.sha256(b"\0".join([*map(str.encode, names), *texts])).hexdigest()


def measure(runs: Runs, jobs: int, renew: bool, tests: Sequence[str]) -> None:
    """Measures missing parts of the coverage map of a copy of the tree, one part per test file."""
    names = tracked()
    now, then = json.dumps([digest(names), *tests]), BUILD / "measured.json"
    before = then.read_text() if then.exists() else ""
    if not before or (renew and before != now):
        shutil.rmtree(BUILD, ignore_errors=True)
        for name in names:
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, TREE / name, follow_symlinks=False)
        MAP.mkdir()
        CACHE.mkdir(mode=0o700)
        then.write_text(now)
    elif before != now:
        print("The tree or --tests has changed since build/mutants was measured; --measure measures again.")
    paths = [TREE / name for name in json.loads(then.read_text())[1:]]
    files = {path for each in paths for path in ([each] if each.is_file() else each.rglob("test_*.py"))}
    missing = [path for path in sorted(files) if not _part_of(path).exists()]
    with runs.workers(jobs) as pool:
        for i, line in enumerate(pool.map(lambda path: _measure_part(runs, path), missing), start=1):
            print(f"measured {i} of {len(missing)}: {line}", flush=True)


def _part_of(path: Path) -> Path:
    return MAP / (path.relative_to(TREE).as_posix().replace("/", "-") + ".json")


def _measure_part(runs: Runs, path: Path) -> str:
    """Runs a file of tests with coverage; only the cases that pass are stored."""
    part, start = _part_of(path), time.monotonic()
    data = part.with_suffix(".coverage")
    cover = ["--cov=gpu_envs", "--cov=adapters", "--cov-context=test", "--cov-report=", f"--cov-config={os.devnull}"]
    rows, code = runs.pytest(
        TREE, CACHE, [*cover, "-m", "not timing", str(path)], 3600, part.with_suffix(".log"), COVERAGE_FILE=str(data)
    )
    cases = {row.pop("case"): row for row in rows if row.get("outcome") == "passed"}
    failed = " ".join(row["case"] for row in rows if row.get("outcome") == "failed")
    numbers = {name: i for i, name in enumerate(cases)}
    lines: dict[str, dict[int, list[int]]] = {}
    if data.exists():
        covered = CoverageData(str(data))
        covered.read()
        for file in covered.measured_files():
            of_file = lines.setdefault(Path(file).relative_to(TREE).as_posix(), {})
            for line, contexts in covered.contexts_by_lineno(file).items():
                of_file[line] = sorted({numbers.get(each.rpartition("|")[0], -1) for each in contexts} - {-1})
        data.unlink()
    scratch = part.with_suffix(".new")
    scratch.write_text(json.dumps({"cases": cases, "lines": lines}))
    scratch.replace(part)
    ended = "" if code in (0, 1, 5) else f", EXIT CODE {code}: see {part.with_suffix('.log')}"
    without = f", left out because they fail: {failed}" if failed else ""
    return f"{path.relative_to(TREE)}, {len(cases)} cases, {time.monotonic() - start:.0f} s{ended}{without}"


def parts() -> Iterator[dict[str, Any]]:
    """The map's parts, one at a time: together they may need a gigabyte."""
    for path in sorted(MAP.glob("*.json")):
        yield json.loads(path.read_text())


def read_map() -> tuple[Cases, set[Line]]:
    """All cases, and the lines of Python and the headers (as line 0) that a case of the first tier executes."""
    cases: Cases = {}
    quick: set[Line] = set()
    for part in parts():
        cases |= part["cases"]
        is_quick = [case["quick"] for case in part["cases"].values()]
        for file, lines in part["lines"].items():
            quick |= {(file, int(line)) for line, numbers in lines.items() if any(is_quick[i] for i in numbers)}
    for case in cases.values():
        quick |= {(f"kernels/{header}", 0) for header in case["headers"] if case["quick"]}
    return cases, quick


def cases_of(mutants: Sequence[Mutant], cases: Cases) -> dict[str, list[str]]:
    """Returns the cases that execute each mutant's line or compile its header, the most specific first."""
    near: dict[str, dict[int, set[str]]] = {mutant.name: defaultdict(set) for mutant in mutants}
    for part in parts():
        names = list(part["cases"])
        for mutant in mutants:
            executed = part["lines"].get(mutant.file, {})
            for line in range(mutant.line - NEAR, mutant.line + NEAR + 1):
                near[mutant.name][line].update(names[i] for i in executed.get(str(line), []))
            header = mutant.file.removeprefix("kernels/")
            near[mutant.name][mutant.line].update(name for name in names if header in part["cases"][name]["headers"])
    return {mutant.name: _ordered(mutant, near[mutant.name], cases) for mutant in mutants}


NEAR, FEW = 12, 20
"""Lines around a mutant that are relevant; maximum number of cases of a line that counts as rarely executed."""


def _ordered(mutant: Mutant, near: Mapping[int, set[str]], cases: Cases) -> list[str]:
    """Orders a mutant's cases: modules named after its file, cases of rarely executed lines, then all modules in turn.

    Not all fit into the time limit, and the fastest alone would be cases of a few modules.
    """
    names = near[mutant.line]
    if mutant.file.endswith(".cuh"):
        shared = {name: len(cases[name]["headers"]) for name in names}  # few headers: specific to them
        few = set[str]()
    else:
        shared = {name: min(len(found) for found in near.values() if name in found) for name in names}
        few = {name for name in names if shared[name] <= FEW}
    few |= {name for name in names if Path(mutant.file).stem in Path(name.partition("::")[0]).stem}
    turns: dict[str, int] = {}
    of_function: Counter[str] = Counter()
    of_module: dict[str, set[str]] = defaultdict(set)
    for name in sorted(names, key=lambda name: (shared[name], cases[name]["seconds"], name)):
        function, functions = name.partition("[")[0], of_module[name.partition("::")[0]]
        turns[name] = of_function[function] + len(functions - {function})
        of_function[function] += 1
        functions.add(function)
    return sorted(names, key=lambda name: (name not in few, turns[name], shared[name], cases[name]["seconds"], name))


def try_mutant(runs: Runs, mutant: Mutant, names: Sequence[str], cases: Cases) -> dict[str, Any]:
    """Tries a mutant in a copy of the tree, against the first tier and then against all other cases."""
    start = time.monotonic()
    result: dict[str, Any] = {"name": mutant.name, **dataclasses.asdict(mutant)}
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="copy-", ignore_cleanup_errors=True) as scratch:
        tree, cache = Path(scratch).resolve() / "tree", Path(scratch) / "cache"
        shutil.copytree(TREE, tree, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(CACHE, cache, copy_function=os.link, ignore=shutil.ignore_patterns("build-*"))
        (tree / mutant.file).write_bytes(mutant.applied((TREE / mutant.file).read_bytes()))
        trial = Trial(runs, tree, cache, cases, mutant.file.endswith(".cuh"))
        outcome = trial.outcome([name for name in names if cases[name]["quick"]], QUICK_LIMIT)
        for tier in ("first", "all"):
            if tier == "all" and not outcome.detected and outcome.kind not in VOID:
                outcome = trial.outcome([name for name in names if name not in trial.passed], FULL_LIMIT)
            result[tier] = {**dataclasses.asdict(outcome), "found": outcome.detected, "text": str(outcome)}
    return {**result, "cases": len(names), "seconds": round(time.monotonic() - start, 1)}


VOID = ("does not compile", "error")
"""Outcomes that say nothing about the tests."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """Creates a copy of the tree with a mutant."""

    runs: Runs
    tree: Path
    cache: Path
    cases: Cases
    of_header: bool
    passed: set[str] = dataclasses.field(default_factory=set)
    """Returns the cases that pass with the mutant."""

    def outcome(self, names: Sequence[str], limit: float) -> Outcome:
        """Returns the outcome of the fastest of these cases that fit into the time limit."""
        ends = itertools.accumulate(self.cases[name]["seconds"] for name in names)
        chosen = [name for i, (name, end) in enumerate(zip(names, ends, strict=True)) if end <= limit or i == 0]
        not_tried = f"{len(names) - len(chosen)} of {len(names)} cases do not fit"
        for _ in range(3):
            result = self._run(self.tree, self.cache, chosen, limit)
            if result.kind == "timed out":
                limit *= 2
                result = self._run(self.tree, self.cache, chosen, limit)
                if result.kind == "timed out" and not self._passes_unmutated(chosen, limit / 2):
                    result = Outcome("not decided")
            if result.kind == "not decided" or (result.kind == "survived" and len(chosen) < len(names)):
                return Outcome(f"not decided in {limit:.0f} s", message=not_tried)
            if result.kind == "refused":
                result = dataclasses.replace(result, kind="does not compile" if self.of_header else "killed")
            if result.kind != "killed":
                return result
            if self._passes_unmutated(chosen if result.case == "collection" else [result.case], 300):
                return result
            chosen = [name for name in chosen if name != result.case]
        return Outcome("error", message="three cases fail without the mutant, too")

    def _passes_unmutated(self, names: Sequence[str], limit: float) -> bool:
        return self._run(TREE, CACHE, names, limit).kind == "survived"

    def _run(self, tree: Path, cache: Path, names: Sequence[str], limit: float) -> Outcome:
        if not names:
            return Outcome("survived")
        arguments = self.tree.parent / "cases"
        arguments.write_text("".join(f"{name}\n" for name in names))
        rows, code = self.runs.pytest(tree, cache, ["-x", f"@{arguments}"], limit, self.tree.parent / "run.log")
        if tree == self.tree:
            self.passed.update(row["case"] for row in rows if row.get("outcome") == "passed")
        return outcome_of(rows, code, time.time())


def drawn_mutants(seed: int, quick: set[Line]) -> dict[str, Iterator[Mutant]]:
    """Mutants of Python and of headers, in the order of the seed."""
    both: dict[str, list[Mutant]] = {"python": [], "headers": []}
    for file in sorted({file for file, _ in quick}):
        text = (TREE / file).read_text("utf-8")
        if file.endswith(".cuh"):
            both["headers"] += of_header(file, text)
        else:
            both["python"] += [mutant for mutant in of_python(file, text) if (file, mutant.line) in quick]
    return {what: draw(mutants, seed) for what, mutants in both.items()}


def try_drawn(runs: Runs, drawn: Iterator[Mutant], count: int, jobs: int, cases: Cases, path: Path) -> list[Any]:
    """Tries ``count`` of the drawn mutants, skips mutants that do not compile, and stores each result."""
    stored: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    results: list[Any] = []
    while len(counted := [row for row in results if row["first"]["kind"] not in VOID]) < count:
        batch = list(itertools.islice(drawn, count - len(counted)))
        if not batch:
            break
        names = cases_of([mutant for mutant in batch if mutant.name not in stored], cases)
        with runs.workers(jobs) as pool:
            new = [mutant for mutant in batch if mutant.name in names]
            tried = [pool.submit(try_mutant, runs, mutant, names[mutant.name], cases) for mutant in new]
            for i, done in enumerate(concurrent.futures.as_completed(tried), start=1):
                row = done.result()
                stored[row["name"]] = row
                path.with_suffix(".new").write_text(json.dumps(stored, indent=1))
                path.with_suffix(".new").replace(path)
                print(f"{i} of {len(tried)}: {line_of(row)}", flush=True)
        results += [stored[mutant.name] for mutant in batch]
    return results


def line_of(row: Mapping[str, Any]) -> str:
    """Formats a mutant and its outcomes."""
    first, both = row["first"]["text"], row["all"]["text"]
    return f"{row['name']}: {first}{'' if both == first else f' in the first tier; {both}'} ({row['seconds']:.0f} s)"


def _why_equivalent(row: Mapping[str, Any]) -> str:
    """Returns why no test can detect a mutant, or an empty string."""
    return EQUIVALENT.get((row["file"], row["name"].partition(" -> ")[2]), "")


def summary(rows: Sequence[Mapping[str, Any]], what: str) -> str:
    """Formats the percentages of detected mutants, and lists the survivors."""
    equivalent = [row for row in rows if _why_equivalent(row)]
    void = [row for row in rows if row["first"]["kind"] in VOID]
    counted = [row for row in rows if row not in equivalent and row not in void]
    lines = []
    for tier, title in {"first": "first tier", "all": "all tests"}.items():
        found = sum(row[tier]["found"] for row in counted)
        lines.append(f"{what}, {title}: {found} of {len(counted)} found, {found / max(1, len(counted)):.0%}")
    lines += [f"  not found: {line_of(row)}" for row in counted if not row["all"]["found"]]
    lines += [f"  equivalent: {row['name']}: {_why_equivalent(row)}" for row in equivalent]
    return "\n".join(lines + [f"  void: {line_of(row)}" for row in void])


def main() -> None:
    """Measures the missing coverage map, tries the mutants and prints the percentages."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="chooses the mutants (default: %(default)s)")
    parser.add_argument("--python", type=int, default=60, help="mutants of Python (default: %(default)s)")
    parser.add_argument("--headers", type=int, default=20, help="mutants of C++ headers (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="at a time (default: cores)")
    parser.add_argument("--measure", action="store_true", help="renew the map if the tree has changed since")
    parser.add_argument("--tests", nargs="+", default=["tests"], metavar="PATH", help="what the map is measured over")
    arguments, runs = parser.parse_args(), Runs()
    measure(runs, arguments.jobs, arguments.measure, arguments.tests)
    cases, quick = read_map()
    print(f"The map has {len(cases)} cases, {sum(case['quick'] for case in cases.values())} of the first tier.")
    summaries = []
    for what, mutants in drawn_mutants(arguments.seed, quick).items():
        path, count = BUILD / f"{what}-{arguments.seed}.json", getattr(arguments, what)
        summaries.append(summary(try_drawn(runs, mutants, count, arguments.jobs, cases, path), what))
    print("", *summaries, sep="\n")
    (BUILD / f"summary-{arguments.seed}.txt").write_text("\n".join(summaries) + "\n")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command continues")
