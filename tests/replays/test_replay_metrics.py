"""Metrics of a recording: values of the running episodes at each step, and charts of metrics and states in the page."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import OpenReplay, Tab, point_in, set_input, shown_frame, text_of
from custom import spec_path as place_of
from harness import IDS, MODES, TEAM_IDS, assert_same_bits, numpy_of
from small_envs import walk

import gpu_envs
from gpu_envs.pictures import BLACK, Drawing, Params, Picture, State, disc
from gpu_envs.replays import Replay, page, record
from gpu_envs.replays.charts import MAX_CHARTS, state_charts
from gpu_envs.replays.recorded import RUNNING, TERMINATED, TRUNCATED


def dot(state: State, params: Params) -> Picture:
    """Draw a disc at each replica's first state value."""
    del params
    x = state["x"].reshape(len(state["x"]), -1)[:, :1]
    return Picture((-9, -9, 9, 9), (disc(np.stack([x, 0 * x], -1), 0.5, BLACK),))


def with_drawing(spec: Any) -> Any:
    return dataclasses.replace(spec, drawing=Drawing(dot, (64, 64)))


MEASURED = {name: with_drawing(gpu_envs.spec(place_of(f"measured.py:{name}"))) for name in ("DRIFTER", "FLOCK")}
"""A single-agent and a multi-agent spec with all kinds of metrics."""

PARAMS: dict[str, dict[str, Any]] = {
    "TagContinuous-v0": {"num_taggers": 3, "num_runners": 7, "tagging_distance": 0.1},
    "RiceN-v0": {"num_regions": 3},
}


def make_env(name: str, count: int, device: str, **kwargs: Any) -> Any:
    params = {**PARAMS.get(name, {}), "max_episode_steps": 9, **kwargs}
    if name not in MEASURED:
        return gpu_envs.make(name, count, device=device, **params)
    kind = gpu_envs.MultiAgentEnv if name == "FLOCK" else gpu_envs.VectorEnv
    return kind(MEASURED[name], count, device=device, **params)


def acting(env: Any) -> Callable[..., Any]:
    """Return a policy of random actions."""
    spaces = env.action_spaces if env.env_spec.has_team else {"": env.action_space}
    for space in spaces.values():
        space.seed(4)

    def act(*_: Any) -> Any:
        actions = {role: space.sample() for role, space in spaces.items()}
        return actions.get("", actions)

    return act


# --- the recording ---


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [*MEASURED, *IDS, *TEAM_IDS])
def test_ends_of_episodes_agree_with_infos(name: str, mode: str, device: str) -> None:
    """Returns, metrics and statuses are the same; recording does not change the environment's state or program."""
    recorded, plain = (make_env(name, 5, device, autoreset_mode=mode, statistics=True) for _ in range(2))
    for env in (recorded, plain):
        env.allow_frozen_steps()
        env.reset(seed=3)
    act = acting(plain)
    before = recorded.simulation.program_source()
    replay = record(recorded, policy=acting(recorded), replicas=[4, 0, 1], steps=25)
    assert list(replay.metrics) == list(plain.env_spec.metrics)
    assert replay.measured == plain.env_spec.metrics
    assert replay.pauses == (mode != "SameStep")
    ended = 0
    returns: dict[str, list[list[float]]] = {role: [[], [], []] for role in replay.agents}
    for step in range(1, 26):
        *_, terminations, _, infos = plain.step(act(None))
        done = numpy_of(plain.simulation.buffers["finished"])[[4, 0, 1]]
        by_role = terminations if isinstance(terminations, Mapping) else {"": terminations}
        terminated = np.all([numpy_of(each).reshape(5, -1).all(1) for each in by_role.values()], 0)[[4, 0, 1]]
        assert np.array_equal(replay.ends[step], np.where(done, np.where(terminated, TERMINATED, TRUNCATED), RUNNING))
        for role, by_replica in returns.items():
            for i in np.flatnonzero(done):
                total = infos["episode"]["r"]
                values = numpy_of(total[role] if isinstance(total, Mapping) else total)[[4, 0, 1][i]]
                by_replica[i].append(float(np.mean(values, dtype=np.float64)))
        for metric, values in replay.metrics.items():
            assert values.shape == (26, 3)
            if done.any():
                assert_same_bits(values[step, done], numpy_of(infos["episode"][metric])[[4, 0, 1]][done], metric)
            ended += done.sum()
    assert ended >= 3 * len(replay.metrics)
    for role, sums in replay.returns().items():  # the environment sums in float32
        assert sums == pytest.approx(np.concatenate(returns[role]), rel=1e-5, abs=1e-5)
    assert_same_bits(recorded.get_state(), plain.get_state())
    assert_same_bits(recorded.observe(), plain.observe())
    assert recorded.simulation.program_source() == before


REDUCED: Mapping[str, Callable[[np.ndarray], Any]] = {
    "last": lambda values: values[-1],
    "mean": lambda values: np.add.accumulate(values)[-1] / values.dtype.type(len(values)),
    "sum": lambda values: np.add.accumulate(values)[-1],
    "max": np.max,
}


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", MEASURED)
def test_metrics_of_running_episodes(name: str, precision: str, device: str) -> None:
    """A Python loop over the recorded states computes the same bits; the first frame of an episode has NaN."""
    env = make_env(name, 4, device, precision=precision)
    replay = record(env, policy=acting(env), steps=40, seed=5)
    x = replay.state["x"]
    if name == "FLOCK":
        size = np.add.accumulate(abs(x), -1)[..., -1]
        now = {"last": x[..., -1], "mean": size, "sum": (x > 2).sum(-1).astype(precision), "highest": x[..., 0]}
    else:
        trail = replay.state["trail"]
        now = {"last": x, "mean": x / x.dtype.type(2), "sum": trail[..., 2], "highest": x - trail[..., 0]}
    for metric, definition in env.env_spec.metrics.items():
        values = replay.metrics[metric]
        assert values.dtype == precision
        for replica in range(4):
            first = 0
            for number in range(41):
                if number == first:
                    assert np.isnan(values[number, replica])
                    continue
                steps = now[metric][first + 1 : number + 1, replica]
                assert_same_bits(np.array(REDUCED[definition.reduce](steps)), values[number, replica], metric)
                first = number + 1 if replay.ends[number, replica] != RUNNING else first
            assert first > 0


def test_metrics_include_steps_before_the_recording(device: str) -> None:
    env, other = (make_env("DRIFTER", 3, device) for _ in range(2))
    for started in (env, other):
        started.reset(seed=1)
    complete = record(other, policy=acting(other), steps=8)
    act = acting(env)
    for _ in range(3):
        env.step(act(None))
    part = record(env, policy=act, steps=5)
    assert part.elapsed.tolist() == [3, 3, 3]
    for metric, values in part.metrics.items():
        assert_same_bits(values[1:], complete.metrics[metric][4:], metric)


def test_finished_replicas_keep_their_last_metrics(device: str) -> None:
    replay = record("CartPole-v1", replicas=5, device=device)
    assert len(set(replay.last.tolist())) > 1
    for values in replay.metrics.values():
        for replica, last in enumerate(replay.last):
            assert (values[last:, replica] == values[last, replica]).all()
        assert np.isfinite(values[1:]).all()


def test_environments_without_metrics(tmp_path: Path, device: str) -> None:
    env = gpu_envs.VectorEnv(with_drawing(walk(tmp_path)), 3, device=device)
    env.reset(seed=0)
    source = env.simulation.program_source()
    with env.live_metrics() as live_metrics:
        assert live_metrics is None
        assert env.simulation.program_source() == source
    replay = record(env, steps=9)
    assert replay.metrics == replay.measured == {}
    assert about_of(page.to_html(replay))["metrics"] == []


# --- the page ---


def about_of(html: str) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(html.partition('id="about">')[2].partition("</script>")[0])
    return about


@pytest.fixture(scope="module")
def carts() -> Replay:
    return record("CartPole-v1", replicas=3, episodes=3, seed=6, device="cpu")


def captions(tab: Tab, place: str = "metrics") -> list[list[str]]:
    """Return the texts above each chart: name, note, and value at the current step."""
    texts: list[list[str]] = tab.run(
        f"[...document.querySelectorAll('#{place} figcaption')].map((it) => [...it.children].map((e) => e.textContent))"
    )
    return texts


def assert_shows(text: str, values: np.ndarray, scale: float) -> None:
    """Assert that a caption shows the mean of the values that are not NaN; ``scale`` is the chart's range."""
    numbers = values[~np.isnan(values)]
    assert text.startswith("mean ") == (len(values) > 1 and len(numbers) > 0)
    assert (text == "") == (len(numbers) == 0)
    if len(numbers):
        assert float(text.removeprefix("mean ")) == pytest.approx(
            float(numbers.mean()), rel=1e-3, abs=float(scale) / 2**13
        )


def test_captions_show_metrics(carts: Replay, open_replay: OpenReplay) -> None:
    """Captions show the means of the current values over all replicas or one."""
    tab = open_replay(carts)
    assert text_of(tab, "#measured h2") == "Metrics of the episode so far"
    first_ended = int(np.flatnonzero(carts.ends.any(1))[0])
    for number in (0, 1, first_ended, first_ended + 1, int(carts.last.min()) + 1, carts.steps):
        set_input(tab, "scrub", number)
        for chosen in ("all", "1"):
            set_input(tab, "replica", chosen)
            which = [0, 1, 2] if chosen == "all" else [1]
            texts = captions(tab)
            assert [row[:2] for row in texts] == [[n, metric.description] for n, metric in carts.measured.items()]
            for (*_, now), values in zip(texts, carts.metrics.values(), strict=True):
                shown = values[np.minimum(number, carts.last)[which], which]
                assert_shows(now, shown, np.ptp(values[np.isfinite(values)]))


def test_captions_of_multi_agent_metrics(open_replay: OpenReplay) -> None:
    tab = open_replay(record(make_env("FLOCK", 2, "cpu"), steps=5, seed=0))
    words = [["last", ""], ["mean", "a share (mean)"], ["sum", "(summed)"], ["highest", "(maximum)"]]
    assert [row[:2] for row in captions(tab)] == words


def coloured(tab: Tab, number: int, colour: tuple[int, int, int]) -> np.ndarray:
    """Return the mask of a metric canvas's pixels with this colour, ``[height, width]``."""
    tab.run(f"document.querySelectorAll('#metrics canvas')[{number}].id = 'metric{number}'")
    pixels = tab.canvas(f"#metric{number}").astype(int)
    return np.asarray(abs(pixels - np.array(colour)).sum(-1) < 90)


def cursor(tab: Tab) -> float:
    """Return the position of the time cursor in the first metric's chart, from 0 to 1."""
    pixels = tab.canvas("#metric0")
    dark = ((pixels.max(-1) < 200) & (np.ptp(pixels, -1) < 10)).sum(0)
    assert dark.max() > 60
    return float(dark.argmax() / dark.size)


def test_charts_are_drawn(open_replay: OpenReplay) -> None:
    """Charts have a curve of the values with gaps between episodes, marks at ends, and a time cursor."""
    env = make_env("DRIFTER", 1, "cpu")
    replay = record(env, policy=acting(env), steps=19, seed=2)
    ramp = np.arange(20.0)[:, None] % 10
    ends = np.where(ramp == 9, 2, 0).astype(np.uint8)
    values = np.where(ramp == 0, np.nan, ramp)
    replay = dataclasses.replace(replay, metrics=dict.fromkeys(replay.metrics, values), ends=ends)
    tab = open_replay(replay)
    set_input(tab, "scrub", 5)
    for number, colour in enumerate([(30, 132, 73), (185, 119, 14), (125, 60, 152), (17, 122, 101)]):
        drawn_at = coloured(tab, number, colour)
        across = np.flatnonzero(drawn_at.any(0))
        heights = {x: np.flatnonzero(drawn_at[:, x]).mean() for x in across}
        gaps = np.diff(across)
        assert (gaps > 5).sum() == 1  # between the episodes
        second = across[gaps.argmax() + 1]
        for part in (across[across < second], across[across >= second]):
            assert heights[part[0]] - heights[part[-1]] > 0.5 * drawn_at.shape[0]
            right = part.max()
            assert np.count_nonzero(drawn_at[:, right - 6 : right + 1].any(1)) >= 4  # the mark
    before = cursor(tab)
    set_input(tab, "scrub", 19)
    assert cursor(tab) - before > 0.6
    tab.click(*point_in(tab, "#metrics canvas", 0.55, 0.5))
    assert shown_frame(tab) == pytest.approx(10, abs=2)
    tab.press("ArrowRight")
    assert captions(tab)[0][-1] == f"{values[shown_frame(tab), 0]:g}"
    tab.click(*point_in(tab, "#metrics canvas", 0.999, 0.5))
    assert shown_frame(tab) == 19


def test_unselected_replicas_have_faint_curves(carts: Replay, open_replay: OpenReplay) -> None:
    tab = open_replay(carts)
    green = (30, 132, 73)
    all_of_them = np.count_nonzero(coloured(tab, 0, green))
    set_input(tab, "replica", "1")
    one = np.count_nonzero(coloured(tab, 0, green))
    faint = np.count_nonzero((tab.canvas("#metric0").max(-1) > 200) & (np.ptp(tab.canvas("#metric0"), -1) > 10))
    assert one > 2 * all_of_them
    assert faint > 100


def test_charts_with_infinity_and_nan(carts: Replay, open_replay: OpenReplay) -> None:
    position, angle = carts.metrics.values()
    infinite = np.where(np.arange(carts.frames)[:, None] == 3, np.inf, position)
    tab = open_replay(dataclasses.replace(carts, metrics={"position": infinite, "angle": np.full_like(angle, np.nan)}))
    set_input(tab, "scrub", 2)
    set_input(tab, "replica", "1")
    assert captions(tab)[0][2] == f"{position[2, 1]:.4g}"
    assert captions(tab)[1][2] == ""
    assert np.count_nonzero(coloured(tab, 0, (30, 132, 73))) > 50


def test_page_without_metrics(tmp_path: Path, open_replay: OpenReplay) -> None:
    env = gpu_envs.VectorEnv(with_drawing(walk(tmp_path)), 2, device="cpu")
    tab = open_replay(record(env, steps=9, seed=0))
    assert tab.run("document.getElementById('measured').clientHeight") == 0
    assert tab.run("document.querySelectorAll('figure').length") == 1


# --- charts of states ---


def test_charts_of_a_state() -> None:
    """Small arrays have a chart per element, larger ones their mean and range; constant fields have none."""
    replay = record("CartPole-v1", replicas=2, steps=6, device="cpu")
    rng = np.random.default_rng(0)
    state = {
        "elapsed": rng.random((7, 2)),
        "fixed": np.broadcast_to(rng.random((2, 4)), (7, 2, 4)),
        "pair": rng.random((7, 2, 2)),
        "matrix": rng.random((7, 2, 3, 5)),
        "number": rng.integers(0, 9, (7, 2)),
        **{f"long{i}": rng.random((7, 2, 4)) for i in range(MAX_CHARTS)},
    }
    charts, omitted = state_charts(dataclasses.replace(replay, drawing=None, state=state))
    kept = MAX_CHARTS - 4  # after those of the pair, the matrix and the number
    assert [chart.name for chart in charts] == [
        "pair[0]",
        "pair[1]",
        "matrix",
        "number",
        *(f"long{i}" for i in range(kept)),
    ]
    assert omitted == ["fixed (constant)", *(f"long{i}" for i in range(kept, MAX_CHARTS))]
    first, second, matrix, number = charts[:4]
    assert_same_bits([first.values, second.values], [state["pair"][..., i] for i in range(2)])
    assert_same_bits(number.values, state["number"])
    assert number.bounds == first.bounds == ()
    values = state["matrix"].reshape(7, 2, 15)
    assert matrix.values == pytest.approx(values.mean(-1))
    assert_same_bits(matrix.bounds, (values.min(-1), values.max(-1)))
    assert matrix.note == "mean and range of 15 values"


def test_a_page_without_a_drawing(open_replay: OpenReplay, tmp_path: Path) -> None:
    """It has curves and bands of the state, with the current values above them, and no picture."""
    env = gpu_envs.make("TagContinuous-v0", 2, device="cpu", num_taggers=2, num_runners=5, grid_length=5.0)
    drawn = record(env, steps=40, seed=3)
    plain = dataclasses.replace(drawn, drawing=None)
    plain.save_html(tmp_path / "plain.html")
    assert (tmp_path / "plain.html").stat().st_size < 80_000
    tab = open_replay(plain)
    assert tab.run("document.getElementById('screen').clientHeight") == 0
    names = [row[0] for row in captions(tab, "fields")]
    assert names == [name for name in drawn.state if name in names]
    assert {"x", "speed", "heading", "runners_left"} < set(names)
    absent = set(drawn.state) - set(names) - {"elapsed"}
    assert text_of(tab, "#omitted") == (
        f"Without a chart: {', '.join(f'{n} (constant)' for n in sorted(absent))}." if absent else ""
    )
    for number, chosen in ((0, "all"), (17, "all"), (40, "1")):
        set_input(tab, "scrub", number)
        set_input(tab, "replica", chosen)
        for name, _, now in captions(tab, "fields"):
            values = drawn.state[name].astype(float).reshape(41, 2, -1).mean(-1)
            assert_shows(
                now, values[number] if chosen == "all" else values[number, 1:], np.ptp(drawn.state[name].astype(float))
            )
    tab.run("document.querySelectorAll('#fields canvas')[0].id = 'x'")
    pixels = tab.canvas("#x").astype(int)  # (125, 60, 152) at 20 % on white
    band = abs(pixels - [229, 216, 234]).sum(-1) < 20
    across = np.flatnonzero(band.any(0))
    frames = np.rint((across - across[0]) / np.ptp(across) * 40).astype(int)
    assert np.corrcoef(band[:, across].sum(0), np.ptp(drawn.state["x"][frames, 1], axis=-1))[0, 1] > 0.9
