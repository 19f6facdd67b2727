"""Tests of ``gpu-envs play`` as a subprocess: files, output and messages."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from cli_tools import code_without, error_of, output_of, run_process
from custom import spec_path
from harness import restored_registry, subprocess_env

from gpu_envs.cli import MISTAKE, OK

CPU = ("--device", "cpu")


def play(*words: str, cwd: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return run_process("play", *words, cwd=cwd, SDL_VIDEODRIVER="dummy", **settings)


def play_output(*words: str, cwd: Path) -> dict[str, str]:
    done = play(*words, cwd=cwd)
    assert (done.returncode, done.stderr) == (OK, "")
    return dict(re.split(r"  +", line, maxsplit=1) for line in done.stdout.splitlines())


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Two short runs, of one agent and of a team."""
    pytest.importorskip("torch")
    from trainers import GRID, small_run

    from gpu_envs.training import train

    folder = tmp_path_factory.mktemp("work") / "runs"
    folders = {"cart": folder / "cart", "grid": folder / "grid"}
    train(small_run("cpu", total_steps=8 * 16 * 10, run_dir=str(folders["cart"])), progress=False)
    short = {"max_episode_steps": 30}
    train(small_run("cpu", GRID, total_steps=8 * 16, params=short, run_dir=str(folders["grid"])), progress=False)
    return folders


# --- files ---


def test_an_id_writes_a_page_into_the_working_folder(tmp_path: Path) -> None:
    page = tmp_path / "CartPole-v1.html"
    page.write_text("an old page, which is replaced")
    output = play_output("gpu_envs/CartPole-v1", *CPU, cwd=tmp_path)
    assert file_names(tmp_path) == [page.name]
    assert "<!DOCTYPE html>" in page.read_text()
    assert output["recorded"].startswith("9 replicas of CartPole-v1, ")
    assert output["return"].endswith("(mean of 9 episodes)")
    assert 10 < float(output["return"].split()[0]) < 40  # of random actions
    assert output["page"] == f"CartPole-v1.html ({round(page.stat().st_size / 1000)} KB)"


@pytest.mark.slow
def test_a_run_writes_a_page_next_to_it(
    runs: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page has the run's name and steps of training, and the episodes of ``gpu-envs eval``."""
    output = play_output(str(runs["cart"]) + "/", *CPU, "--replicas", "7", cwd=tmp_path)
    page = runs["cart"].with_name("cart.html")
    assert output["page"].startswith(f"{page} (")
    assert file_names(tmp_path) == []
    text = page.read_text()
    assert '["Run","cart"]' not in text  # only in the title
    for part in ("CartPole-v1: cart", '["Trained for","1,280 steps"]', '["Actions","most likely (greedy)"]'):
        assert part in text
    mean = re.search(r"agent +([\d.]+)", output_of(capsys, "eval", str(runs["cart"]), *CPU, "--episodes", "7"))
    assert mean is not None
    assert output["return"] == f"{mean[1]} (mean of 7 episodes)"
    page.unlink()
    monkeypatch.chdir(runs["cart"])
    output_of(capsys, "play", ".", *CPU, "--steps", "1", "--seed", "none")
    assert page.exists()
    page.unlink()


@pytest.mark.slow
def test_a_video_and_a_page_together(runs: Mapping[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    words = "--video v.mp4 --html p.html --replicas 2 --steps 12 --width 300 --fps 24".split()
    others = ("--policy", "runner=random", "--sampled", "--seed", "4", "--window")
    output = play_output(str(runs["grid"]), *CPU, *words, *others, cwd=tmp_path)
    assert file_names(tmp_path) == ["p.html", "v.mp4"]
    assert list(output) == ["recorded", "return of tagger", "return of runner", "page", "video"]
    assert output["recorded"] == "2 replicas of TagGridWorld-v0, 12 steps"
    assert output["return of tagger"] == output["return of runner"] == "no episode ended"
    assert output["video"].startswith("v.mp4 (")
    text = (tmp_path / "p.html").read_text()
    expected = ('"fps":24', '["Actions","sampled, as in training"]', '["Seed","4"]', "max_episode_steps = 30")
    for part in (*expected, "runner: random"):
        assert part in text


def test_gifs_of_random_actions(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    words = ("--video", "v.gif", "--replicas", "1", "--episodes", "2", "--param", "length=0.9", "--width", "120")
    output = play_output("CartPole-v1", *CPU, *words, cwd=tmp_path)
    steps = int(output["recorded"].split(", ")[1].split()[0])
    assert output["return"].endswith("(mean of 2 episodes)")
    assert file_names(tmp_path) == ["v.gif"]
    with image.open(tmp_path / "v.gif") as gif:
        assert gif.size == (120, 80)
        assert gif.n_frames == steps + 1


# --- mistakes ---


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which run or environment? Give a run directory or an environment ID"),
        (["CartPol-v1"], "no environment and no run directory is named 'CartPol-v1'. Did you mean 'CartPole-v1'?"),
        (["runs/none"], "the run directory runs/none does not exist"),
        (["x" * 300], "File name too long"),
        (["CartPole-v1", "--html", "x" * 300 + ".html"], "too long"),
        (["CartPole-v1", "Pendulum-v1"], "one run directory or environment ID is expected"),
        (["CartPole-v1", "--replicas", "0"], "--replicas is 0; give an integer of at least 1"),
        (["CartPole-v1", "--steps", "3", "--episodes", "3"], "not allowed with"),
        (["CartPole-v1", "--seed", "-1"], "--seed is -1"),
        (["CartPole-v1", "--video", "a.avi"], "a video cannot be 'a.avi'; its name ends in .mp4 or .gif"),
        (["CartPole-v1", "--width", "300"], "--width needs --video or --window"),
        (["CartPole-v1", "--video", "a.gif", "--width", "20"], "9 replicas need a width of at least 52"),
    ],
)
def test_messages_of_mistakes(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--video" in words:
        pytest.importorskip("PIL.Image")
    if words[:1] == ["runs/none"]:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    device = [] if "--device" in words or not words else CPU
    assert message in error_of(capsys, "play", *words, *device)
    assert file_names(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems always have a display")
def test_a_window_without_a_display(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pygame").display.quit()
    for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert "this machine has no display for a window" in error_of(capsys, "play", "CartPole-v1", "--window", *CPU)


def test_an_environment_without_a_drawing_has_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    words = (str(spec_path("measured.py:DRIFTER")), *CPU, "--steps", "3")
    with restored_registry():
        for wish in (["--video", "a.gif"], ["--window"]):
            assert "has no drawing, which videos and windows need: save a page" in error_of(
                capsys, "play", *words, *wish
            )
        assert file_names(tmp_path) == []
        output_of(capsys, "play", *words)
    (page,) = file_names(tmp_path)
    assert '"state":[{"name":"x",' in (tmp_path / page).read_text()


@pytest.mark.parametrize(
    ("absent", "words", "code", "message"),
    [
        ("torch,cupy,PIL,imageio,imageio_ffmpeg,pygame", ["CartPole-v1", "--steps", "2"], OK, "CartPole-v1.html"),
        ("PIL", ["CartPole-v1", "--video", "a.gif"], MISTAKE, "pip install 'gpu_envs[video]'"),
        ("imageio_ffmpeg", ["CartPole-v1", "--video", "a.mp4"], MISTAKE, "pip install 'gpu_envs[video]'"),
        ("pygame", ["CartPole-v1", "--window"], MISTAKE, "pip install 'gpu_envs[render]'"),
        ("torch", ["CartPole-v1", "--policy", "agent=random"], MISTAKE, "pip install 'gpu_envs[train]'"),
        ("torch", ["--help"], OK, "RUN_OR_ID"),
    ],
)
def test_without_optional_libraries(absent: str, words: list[str], code: int, message: str, tmp_path: Path) -> None:
    done = run_process("play", *words, *CPU, code=code_without(*absent.split(",")), cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert file_names(tmp_path) == (["CartPole-v1.html"] if code == OK and words != ["--help"] else [])


def test_a_progress_bar_is_shown_in_a_terminal(tmp_path: Path) -> None:
    terminal, program_end = pty.openpty()
    words = [sys.executable, "-m", "gpu_envs", "play", "CartPole-v1", *CPU, "--steps", "50"]
    out = subprocess.check_output(words, cwd=tmp_path, env=subprocess_env(), stderr=program_end, text=True)
    os.close(program_end)
    progress = os.read(terminal, 100_000).decode()
    os.close(terminal)
    assert "100%" in progress
    assert "steps/s" in progress
    assert "%" not in out
    assert play("CartPole-v1", *CPU, "--steps", "50", "--progress", cwd=tmp_path).stderr.count("100%") >= 1
    assert play("CartPole-v1", *CPU, "--steps", "50", cwd=tmp_path).stderr == ""
