"""Specs from files, modules and distributions: found by spec path, also in other processes."""

import copy
import dataclasses
import gc
import importlib
import json
import pickle
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from harness import restored_registry, run_python, subprocess_env
from small_envs import walk

import gpu_envs
from gpu_envs import Param, Table
from gpu_envs.cli import MISTAKE, OK, main
from gpu_envs.errors import SourceError, UnknownEnvironmentError
from gpu_envs.registry import catalog as registry
from gpu_envs.registry import sources
from gpu_envs.replays.source import find

HEADER = """
FN void reset(State& s, const Params& p, Random& random) { s.x = random.uniform(-p.start, p.start); }
FN Outcome step(State& s, const Params& p, const Action& action, Random&) {
    s.x += real(0.1) * real(action - 1);
    return {real(1), s.x > real(1) || s.x < real(-1)};
}
FN void observe(const State& s, const Params&, Observation& observation) { observation[0] = s.x; }
"""

SPEC = """
import numpy as np
from gymnasium.spaces import Box, Discrete
from gpu_envs import EnvSpec, Param

DRIFT = EnvSpec(
    id="Drift-v0",
    header="drift.cuh",
    state=("x",),
    params={"start": Param(0.1)},
    observation=Box(-2, 2, (1,), np.float32),
    action=Discrete(3),
    max_episode_steps=20,
)
"""

PARTS: dict[str, Any] = {"id": "Same-v0", "header": "drift.cuh", "state": ("x",)}
SPACES: dict[str, Any] = {"observation": Box(-2, 2, (1,), np.float32), "action": Discrete(3)}


@pytest.fixture(autouse=True)
def _isolated_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Restores the registry after each test, and hides installed distributions."""
    monkeypatch.setattr(sources, "installed_entry_points", list)
    modules = set(sys.modules)
    with restored_registry():
        yield
    for name in set(sys.modules) - modules:
        module = sys.modules[name]
        if str(tmp_path) in str(getattr(module, "__file__", None) or getattr(module, "__path__", "")):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with a header and a spec."""
    made = tmp_path / "a folder"
    made.mkdir()
    (made / "drift.cuh").write_text(HEADER)
    (made / "drift.py").write_text(SPEC)
    return made


def refusal(reference: object) -> str:
    with pytest.raises((SourceError, UnknownEnvironmentError, FileNotFoundError, ValueError)) as caught:
        registry.spec(str(reference))
    return str(caught.value)


# --- files ---


def test_a_file_and_the_name_of_a_spec(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    spec = gpu_envs.spec(f"{folder.name}/drift.py:DRIFT")
    assert spec.id == "Drift-v0"
    assert (
        spec is gpu_envs.spec("Drift-v0") is gpu_envs.spec(f"{folder}/drift.py") is gpu_envs.spec("gpu_envs/Drift-v0")
    )
    assert (
        registry.portable_name("Drift-v0")
        == registry.portable_name(f"{folder.name}/drift.py")
        == f"{folder}/drift.py:DRIFT"
    )
    assert registry.origin_of("Drift-v0").shown == f"{folder}/drift.py:DRIFT"
    assert "Drift-v0" in gpu_envs.ids()


def test_a_folder_with_a_file_of_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``gpu-envs new`` writes it; a folder without such a file names no spec."""
    monkeypatch.chdir(folder.parent)
    (folder / "drift").mkdir()
    (folder / "drift.py").rename(folder / "drift/drift.py")
    assert "there is no environment" in refusal(folder.name)
    for name in (f"{folder.name}/drift", f"{folder}/drift/"):
        assert gpu_envs.spec(name).id == find(name) == "Drift-v0"
        assert registry.portable_name(name) == f"{folder}/drift/drift.py:DRIFT"


@pytest.mark.parametrize("late", [False, True], ids=["at its top", "in a function"])
@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("sizes.py", "from sizes import LIMIT"),
        ("sizes/__init__.py", "from sizes import LIMIT"),
        ("sizes/of_mine.py", "from sizes.of_mine import LIMIT"),
        ("sizes.py", "from through import LIMIT"),
        ("sizes/of_mine.py", "from package.through import LIMIT"),
    ],
)
def test_a_file_imports_modules_next_to_it(
    module: str, line: str, late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if modules in other folders, or imported by the program, have the same name."""
    folders = [tmp_path / name for name in ("program", "one", "another")]
    for limit, place in enumerate(folders, 100):
        for file, text in (
            (module, f"LIMIT = {limit}\n"),
            ("through.py", "from sizes import LIMIT\n"),
            ("package/__init__.py", ""),
            ("package/through.py", "from package import within\nfrom .within import LIMIT\n"),
            ("package/within.py", "from sizes.of_mine import LIMIT\n"),
        ):
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).write_text(text)
        limited = SPEC.replace("Drift", f"Drift{limit}").replace("steps=20", "steps=length" if late else "steps=LIMIT")
        (place / "drift.py").write_text(
            f"def length(params):\n    {line}\n    return LIMIT\n{'' if late else line}\n{limited}"
        )
    monkeypatch.syspath_prepend(folders[0])
    exec(line, {})
    path, known = list(sys.path), sys.modules["sizes"]
    specs = [gpu_envs.spec(f"{place}/drift.py") for place in folders]
    assert [spec.step_limit(spec.check_params({}, 1)) for spec in specs] == [100, 101, 102]
    assert (sys.path, sys.modules["sizes"]) == (path, known)


@pytest.mark.parametrize(("edited", "text"), [("drift.py", "=LIMIT"), ("sizes.py", "= 20")])
def test_an_edit_is_used_by_the_next_process(folder: Path, edited: str, text: str) -> None:
    """A warning says so once."""
    (folder / "sizes.py").write_text("LIMIT = 20\n")
    (folder / "drift.py").write_text(f"from sizes import LIMIT\n{SPEC.replace('=20', '=LIMIT')}")
    place = f"{folder}/drift.py:DRIFT"
    spec = gpu_envs.spec(place)
    (folder / edited).write_text((folder / edited).read_text().replace(text, "= 30"))
    with pytest.warns(UserWarning, match=rf"{edited} has changed since it was imported, .* restart this process"):
        assert gpu_envs.spec(place) is spec
    assert gpu_envs.spec(place) is spec
    assert gymnasium.spec("gpu_envs/Drift-v0").max_episode_steps == 20
    assert not (folder / "__pycache__").exists()  # which could replace an edited text
    assert run_python(f"import gpu_envs; print(gpu_envs.spec({place!r}).max_episode_steps)") == "30\n"


def test_threads_import_a_file_once(folder: Path) -> None:
    file = folder / "drift.py"
    file.write_text(f"import os, time\nos.mkdir({f'{folder}/once'!r})\ntime.sleep(0.1)\n{SPEC}")
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(gpu_envs.spec, [str(file)] * 2)
    assert one is other


def test_a_file_that_registers_its_spec(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may also be imported as a module, before or after; its spec path stays known."""
    file = folder / "drift_registered.py"
    drawn = SPEC.replace(
        "    max", "    drawing=gpu_envs.pictures.Drawing(lambda state, params: None),\n    max"
    )  # never equal
    file.write_text(f"import gpu_envs\n{drawn}\ngpu_envs.register(DRIFT)\n")
    monkeypatch.syspath_prepend(folder)
    importlib.import_module("drift_registered")
    assert registry.portable_name("Drift-v0") == "Drift-v0"
    gpu_envs.spec(f"{file}:DRIFT")
    assert registry.portable_name("Drift-v0") == f"{file}:DRIFT"
    module = importlib.reload(sys.modules["drift_registered"])
    assert gpu_envs.spec("Drift-v0") is module.DRIFT
    assert registry.portable_name("Drift-v0") == f"{file}:DRIFT"


def test_an_id_that_is_taken(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(SPEC.replace("=20", "=30"))
    gpu_envs.spec(f"{folder}/drift.py:DRIFT")
    text = refusal(f"{other}:DRIFT")
    assert "'Drift-v0' is taken" in text
    assert f"{folder}/drift.py:DRIFT" in text
    assert f"{other}:DRIFT" in text
    twice = tmp_path / "twice.py"
    twice.write_text(
        SPEC.replace("Drift", "Twice")
        + SPEC.replace("Drift", "Twice").replace("DRIFT", "LIKE_IT").replace("=20", "=30")
    )
    gpu_envs.spec(f"{twice}:DRIFT")
    assert "is taken" in refusal(f"{twice}:LIKE_IT")
    by_hand = "import gpu_envs\n" + SPEC.replace("Drift", "Hand") + "gpu_envs.register(DRIFT)\n"
    (folder / "by_hand.py").write_text(by_hand + by_hand.replace("=20", "=30"))
    assert "is taken" in refusal(folder / "by_hand.py")
    own = dataclasses.replace(gpu_envs.spec("Drift-v0"), max_episode_steps=7)
    with pytest.raises(ValueError, match="registered by hand"):
        gpu_envs.register(own)
    gpu_envs.register(own, replace=True)
    assert gpu_envs.spec("Drift-v0") is own


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({"params": {"k": Param(1)}}, {"params": {"k": Param(1.0)}}),
        ({"params": {"k": Param(1)}}, {"params": {"k": Param(True)}}),
        ({"params": {"k": Param([1, 2])}}, {"params": {"k": Param([1.0, 2.0])}}),
        ({"params": {"k": Param(0.0)}}, {"params": {"k": Param(-0.0)}}),
        ({"params": {"j": Param(1), "k": Param(1)}}, {"params": {"k": Param(1), "j": Param(1)}}),
        ({"tables": {"k": Table([1, 2], "int")}}, {"tables": {"k": Table([1, 2])}}),
        ({"observation": Box(0, 1, (4,), np.float32)}, {"observation": Box(0, 1.000001, (4,), np.float32)}),
    ],
)
def test_specs_that_python_considers_equal(changes: dict[str, Any], others: dict[str, Any]) -> None:
    """They are not confused, and each is equal to a copy of itself."""
    given = (changes, copy.deepcopy(changes), others)
    one, same, other = (gpu_envs.EnvSpec(**PARTS, **{**SPACES, **part}) for part in given)
    gpu_envs.register(one)
    gpu_envs.register(same)
    assert gpu_envs.spec(one.id) is one
    with pytest.raises(ValueError, match="is taken by another environment"):
        gpu_envs.register(other)


def test_mistakes_in_a_spec_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "drift.py"
    monkeypatch.chdir(folder)
    assert refusal("drfit.py") == "there is no file 'drfit.py'. Did you mean 'drift.py'?"
    assert "drift.py has no 'DRFIT'. Did you mean 'DRIFT'? Its specs are: DRIFT" in refusal("drift.py:DRFIT")
    assert "drift.py:Box is the class Box, not an EnvSpec" in refusal("drift.py:Box")
    assert "after the colon, give a name in that file" in refusal("drift.py:Drift-v0")
    assert "Did you mean 'drift.py'?" in refusal("./drift")
    (folder / "empty.py").write_text("x = 3\n")
    assert "empty.py has 0 specs. It has no spec" in refusal("empty.py")
    file.write_text(SPEC + SPEC.replace("DRIFT", "OTHER").replace("Drift", "Other"))
    assert "drift.py has 2 specs; name one, such as drift.py:DRIFT. Its specs are: DRIFT, OTHER" in refusal("drift.py")


@pytest.mark.parametrize(
    ("line", "expected_text"),
    [
        ("x = 1 +", "SyntaxError: invalid syntax"),
        ("import nothing_of_the_kind", "ModuleNotFoundError: No module named 'nothing_of_the_kind'"),
        ("len(3)", "TypeError: object of type 'int' has no len()"),
        ("raise SystemExit(2)", "SystemExit: 2 (the file ends the process"),
        ("from . import sizes", "to import a file of a package, name the module"),
        ("EnvSpec(id='Nameless')", "TypeError: EnvSpec.__init__() missing"),
        (
            "EnvSpec(id='A-v0', header='a', state=('x',), params={'g': 9.8}, observation=None, action=None)",
            "A-v0: params: 'g' is 9.8; give a Param, such as Param(9.8)",
        ),
    ],
)
def test_an_error_shows_the_author_s_line(
    folder: Path, line: str, expected_text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / "wrong.py").write_text(f"{SPEC}\n{line}\n")
    number = len(SPEC.splitlines()) + 2
    text = refusal("wrong.py")
    assert text.startswith(f"wrong.py:{number}: ")
    assert expected_text in text
    assert text.endswith(f"\n    {line}")
    assert refusal("wrong:DRIFT") == text
    assert main(["list", "wrong.py"]) == MISTAKE
    assert capsys.readouterr().err == f"gpu-envs: error: {text}\n"


def test_a_failed_import_has_no_effects(folder: Path) -> None:
    """So the next attempt sees corrections in the file or in a module next to it."""
    file, sizes = folder / "drift.py", folder / "sizes_of_mine.py"
    registering = "import gpu_envs, sizes_of_mine\n" + SPEC.replace("=20", "=sizes_of_mine.LIMIT")
    file.write_text(f"{registering}\ngpu_envs.register(DRIFT)\nprint(sizes_of_mine.OTHER)\n")
    before = set(sys.modules)
    for text in ("LIMIT = 1 +\n", "LIMIT = 10\n", "LIMIT = 11\n"):
        sizes.write_text(text)
        expected_text = refusal(file)
        assert ("SyntaxError" in expected_text) == (text == "LIMIT = 1 +\n"), expected_text
        assert "Drift-v0" not in {spec.id for spec in registry.registered()}
        assert "gpu_envs/Drift-v0" not in gymnasium.registry
        assert set(sys.modules) == before
    sizes.write_text("LIMIT = 12\nOTHER = 3\n")
    assert gpu_envs.spec(f"{file}").max_episode_steps == 12


@pytest.mark.parametrize(
    ("right", "wrong", "expected_text"),
    [("DRIFT =", "DRFIT =", "Did you mean 'DRFIT'?"), ("Drift-v0", "CartPole-v1", "'CartPole-v1' is taken")],
)
def test_a_corrected_name_or_id(folder: Path, right: str, wrong: str, expected_text: str) -> None:
    file = folder / "drift.py"
    file.write_text(SPEC.replace(right, wrong))
    assert expected_text in refusal(f"{file}:DRIFT")
    file.write_text(SPEC)
    assert gpu_envs.spec(f"{file}:DRIFT").id == "Drift-v0"


def test_an_error_in_an_installed_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message shows the author's line that led to the error, as for any library."""
    place = folder / ".venv" / "site-packages"
    place.mkdir(parents=True)
    (place / "library_of_somebody.py").write_text("def fail():\n    raise ValueError('no')\n")
    monkeypatch.syspath_prepend(place)
    (folder / "wrong.py").write_text("import library_of_somebody\nlibrary_of_somebody.fail()\n")
    assert refusal(folder / "wrong.py") == f"{folder}/wrong.py:2: ValueError: no\n    library_of_somebody.fail()"


def test_a_failed_file_unregisters_its_team(tmp_path: Path) -> None:
    pettingzoo = pytest.importorskip("gpu_envs.adapters.pettingzoo")
    file = tmp_path / "failing.py"
    text = "import dataclasses, gpu_envs\nMINE = dataclasses.replace(gpu_envs.spec('TagGridWorld-v0'), id='MyTag-v0')\n"
    file.write_text(f"{text}gpu_envs.register(MINE)\nraise ValueError\n")
    known = set(pettingzoo.parallel_registry), set(vars(pettingzoo))
    refusal(file)
    assert (set(pettingzoo.parallel_registry), set(vars(pettingzoo))) == known
    file.write_text(f"{text}gpu_envs.register(MINE)\n")
    gpu_envs.spec(str(file))
    assert "gpu_envs/MyTag-v0" in pettingzoo.parallel_registry
    pettingzoo.withdraw("MyTag-v0")


def test_a_missing_header(folder: Path) -> None:
    (folder / "drift.cuh").rename(folder / "drifts.cuh")
    with pytest.raises(FileNotFoundError) as caught:
        gpu_envs.make(f"{folder}/drift.py", device="cpu")
    assert str(caught.value) == (
        "Drift-v0: found no header 'drift.cuh'. Did you mean 'drifts.cuh'? "
        f"Tried: {folder}/drift.cuh, and the headers of gpu_envs/kernels"
    )


# --- modules ---


def test_a_module_and_the_name_of_a_spec(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "of_somebody"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "drift.cuh").write_text(HEADER)
    (package / "drift.py").write_text(SPEC)
    monkeypatch.chdir(folder)  # the search path of modules, as in python -m
    spec = gpu_envs.spec("of_somebody.drift:DRIFT")
    assert gpu_envs.make("Drift-v0", device="cpu").reset(seed=1)[0].shape == (1, 1)
    assert registry.portable_name("Drift-v0") == "of_somebody.drift:DRIFT"
    assert gpu_envs.spec("of_somebody/drift.py:DRIFT").id == spec.id  # the same spec, by its file
    assert "there is no module 'of_nobody': it is not installed" in refusal("of_nobody.drift:DRIFT")


# --- other processes ---


def test_a_pickle_in_another_process(folder: Path, tmp_path: Path) -> None:
    env = gpu_envs.make(f"{folder}/drift.py", 3, device="cpu")
    env.reset(seed=5)
    (tmp_path / "env.pickle").write_bytes(pickle.dumps(env))
    expected = env.step([0, 1, 2])[0].ravel().tolist()
    code = (
        "import json, pickle; env = pickle.load(open('env.pickle', 'rb'));"
        "print(json.dumps(env.step([0, 1, 2])[0].ravel().tolist()))"
    )
    assert json.loads(run_python(code, tmp_path)) == expected


def test_copies_keep_their_spec(tmp_path: Path) -> None:
    """Even if another spec has taken its id, as when a notebook cell is edited; the rules are in separate files."""
    (tmp_path / "edited").mkdir()
    spec, edited = (
        walk(folder, step=f"return {{real({reward}), false}};")
        for folder, reward in ((tmp_path, 1), (tmp_path / "edited", 2))
    )
    env = gpu_envs.make(spec, device="cpu")
    env.reset(seed=0)
    kept = pickle.dumps(env)
    gpu_envs.register(edited, replace=True)
    for twin in (env.fork(1), copy.deepcopy(env), pickle.loads(kept)):
        assert twin.env_spec is spec
        assert twin.step(np.zeros(1, np.int64))[1].tolist() == [1]
    assert copy.deepcopy(gpu_envs.make("Walk-v0", device="cpu")).env_spec is edited
    forgotten = weakref.ref(spec)
    del env, twin, spec
    gc.collect()
    assert forgotten() is None


def test_a_pickle_of_a_spec_registered_by_hand(folder: Path) -> None:
    spec, _ = sources.load(sources.SpecPath(str(folder / "drift.py"), "DRIFT"))
    gpu_envs.register(spec)
    data = pickle.dumps(gpu_envs.make("Drift-v0", device="cpu"))
    assert pickle.loads(data).num_envs == 1  # this process knows the spec
    del registry.SPECS["Drift-v0"]
    registry.PICKLED_SPECS.clear()
    with pytest.raises(UnknownEnvironmentError, match=r"registered by hand in another process.*register it here too"):
        pickle.loads(data)


def test_gymnasium_s_spec_makes_it_in_another_process(folder: Path, tmp_path: Path) -> None:
    """As in spawned processes."""
    gpu_envs.spec(f"{folder}/drift.py")
    (tmp_path / "spec.json").write_text(gymnasium.spec("gpu_envs/Drift-v0").to_json())
    code = (
        "import gymnasium; spec = gymnasium.envs.registration.EnvSpec.from_json(open('spec.json').read());"
        "print(gymnasium.make(spec).reset(seed=0)[0].shape)"
    )
    assert run_python(code, tmp_path) == "(1,)\n"


@pytest.mark.usefixtures("one_thread")
def test_a_run_resumes_in_another_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(folder)
    words = ["--device=cpu", "--num-envs=16", "--horizon=8", "--total-steps=256", "--hidden=8", "--no-progress"]
    assert main(["train", "drift.py", *words]) == OK
    (run,) = (folder / "runs").iterdir()
    assert run.name.startswith("Drift-v0-")
    assert json.loads((run / "config.json").read_text())["config"]["env"] == f"{folder}/drift.py:DRIFT"
    monkeypatch.chdir(tmp_path)
    for name in ("SPECS", "ORIGINS"):
        getattr(registry, name).pop("Drift-v0")
    assert main(["eval", str(run), "--trust", "--episodes=4", "--device=cpu"]) == OK
    (folder / "drift.py").write_text(SPEC + "# edited since\n")
    with pytest.warns(UserWarning, match="drift.py has changed since it was imported"):
        assert main(["train", "--resume", str(run), "--total-steps=512", "--no-progress"]) == OK
    assert "mean return" in capsys.readouterr().out


# --- other distributions ---


def installed(folder: Path, distribution: str, entry: str, text: str) -> None:
    """Installs a distribution into a folder, as pip does."""
    info = folder / f"{distribution}-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[{sources.GROUP}]\n{distribution} = {entry}\n")
    (folder / f"{entry.partition(':')[0]}.py").write_text(text)


def run(folder: Path, code: str) -> tuple[list[str], str]:
    """Output lines and warnings of a script that finds the distributions installed in ``site``."""
    head = "import sys, warnings; sys.path.append('site'); warnings.simplefilter('always'); import gpu_envs\n"
    command = [sys.executable, "-c", head + textwrap.dedent(code)]
    done = subprocess.run(command, cwd=folder, env=subprocess_env(), capture_output=True, text=True, check=True)
    return done.stdout.splitlines(), done.stderr


def test_installed_distributions(tmp_path: Path) -> None:
    """Importing gpu_envs does not import them; the first lookup of an unknown id or of all ids does, once."""
    site = tmp_path / "site"
    installed(site, "drifting", "drifting_envs:DRIFT", "print('imported')\n" + SPEC)
    two = SPEC.replace("Drift", "Second").replace("DRIFT", "SECOND")
    installed(site, "several", "several_envs:ALL", SPEC.replace("Drift", "First") + two + "ALL = [DRIFT, SECOND]\n")
    installed(site, "broken", "broken_envs:DRIFT", "import nothing_of_the_kind\n")
    code = """
        gpu_envs.spec("CartPole-v1")
        print("before")
        print(gpu_envs.spec("First-v0").id, gpu_envs.registry.catalog.origin_of("First-v0").shown)
        print([id for id in gpu_envs.ids() if id in ("Drift-v0", "First-v0", "Second-v0")])
        print(gpu_envs.registry.catalog.portable_name("Drift-v0"))
    """
    expected_text, warned = run(tmp_path, code)
    assert expected_text == [
        "before",
        "imported",
        "First-v0 several 1.5 (several_envs:ALL)",
        "['Drift-v0', 'First-v0', 'Second-v0']",
        "Drift-v0",
    ]
    assert warned.count("Warning") == 1
    assert "the environments of broken 1.5 (broken_envs:DRIFT) are ignored: " in warned
    assert "No module named 'nothing_of_the_kind'" in warned


def test_two_distributions_with_one_id(tmp_path: Path) -> None:
    """The lookup is ambiguous and fails with both names; an existing id stays."""
    site = tmp_path / "site"
    installed(site, "drifting", "drifting_envs:DRIFT", SPEC)
    installed(site, "floating", "floating_envs:DRIFT", SPEC.replace("=20", "=30"))
    installed(site, "greedy", "greedy_envs:DRIFT", SPEC.replace("Drift-v0", "CartPole-v1"))
    code = """
        for _ in range(2):
            try:
                gpu_envs.spec("Drift-v0")
            except ValueError as error:
                print(error)
        print(gpu_envs.spec("CartPole-v1").max_episode_steps)
    """
    (*refusals, limit), warned = run(tmp_path, code)
    for refused in refusals:
        assert "the id 'Drift-v0' is taken by another environment" in refused
        assert "drifting 1.5 (drifting_envs:DRIFT)" in refused
        assert "floating 1.5 (floating_envs:DRIFT)" in refused
    assert (len(refusals), limit) == (2, "500")
    assert "the id 'CartPole-v1' is taken by another environment (gpu_envs; the new one: greedy 1.5" in warned
