"""The metrics of a recording: at every step what an episode has of them so far, and in the page a chart of each."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Open, Tab, frame, middle_of, set_to, text
from custom import place as place_of
from harness import IDS, MODES, TEAM_IDS, assert_same_bits, numpy_of
from small_envs import walk

import gpu_envs
from gpu_envs.pictures import BLACK, Drawing, Params, Picture, State, disc
from gpu_envs.replays import Replay, page, record
from gpu_envs.replays.recorded import GOES_ON, TERMINATED, TRUNCATED


def dot(state: State, params: Params) -> Picture:
    """Each replica's first number, in the middle of nothing."""
    del params
    x = state["x"].reshape(len(state["x"]), -1)[:, :1]
    return Picture((-9, -9, 9, 9), (disc(np.stack([x, 0 * x], -1), 0.5, BLACK),))


def drawn(spec: Any) -> Any:
    return dataclasses.replace(spec, drawing=Drawing(dot, (64, 64)))


OWN = {name: drawn(gpu_envs.spec(place_of(f"measured.py:{name}"))) for name in ("DRIFTER", "FLOCK")}
"""A single agent and a team with metrics of all kinds."""

PARAMS: dict[str, dict[str, Any]] = {
    "TagContinuous-v0": {"num_taggers": 3, "num_runners": 7, "tagging_distance": 0.1},
    "RiceN-v0": {"num_regions": 3},
}


def made(name: str, count: int, device: str, **kwargs: Any) -> Any:
    params = {**PARAMS.get(name, {}), "max_episode_steps": 9, **kwargs}
    if name not in OWN:
        return gpu_envs.make(name, count, device=device, **params)
    kind = gpu_envs.MultiAgentEnv if name == "FLOCK" else gpu_envs.VectorEnv
    return kind(OWN[name], count, device=device, **params)


def acting(env: Any) -> Callable[[Any], Any]:
    """Actions that look at nothing."""
    spaces = env.action_spaces if env.env_spec.has_team else {"": env.action_space}
    for space in spaces.values():
        space.seed(4)

    def act(observations: Any) -> Any:
        del observations
        found = {role: space.sample() for role, space in spaces.items()}
        return found.get("", found)

    return act


# --- what is recorded ---


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [*OWN, *IDS, *TEAM_IDS])
def test_where_episodes_end_they_are_those_of_infos(name: str, mode: str, device: str) -> None:
    """Returns, metrics and kinds of ends; and a recording leaves the environment where one is that nobody recorded."""
    watched, alone = (made(name, 5, device, autoreset_mode=mode, statistics=True) for _ in range(2))
    for env in (watched, alone):
        env.allow_frozen_steps()
        env.reset(seed=3)
    act = acting(alone)
    before = watched.simulation.program_source()
    replay = record(watched, policy=acting(watched), replicas=[4, 0, 1], steps=25)
    assert list(replay.metrics) == list(alone.env_spec.metrics)
    assert replay.measured == alone.env_spec.metrics
    assert replay.pauses == (mode != "SameStep")
    ended = 0
    returns: dict[str, list[list[float]]] = {role: [[], [], []] for role in replay.agents}
    for step in range(1, 26):
        *_, terminations, _, infos = alone.step(act(None))
        over = numpy_of(alone.simulation.buffers["finished"])[[4, 0, 1]]
        by_role = terminations if isinstance(terminations, Mapping) else {"": terminations}
        terminated = np.all([numpy_of(each).reshape(5, -1).all(1) for each in by_role.values()], 0)[[4, 0, 1]]
        assert np.array_equal(replay.ends[step], np.where(over, np.where(terminated, TERMINATED, TRUNCATED), GOES_ON))
        for role, found in returns.items():
            for i in np.flatnonzero(over):
                total = infos["episode"]["r"]
                values = numpy_of(total[role] if isinstance(total, Mapping) else total)[[4, 0, 1][i]]
                found[i].append(float(np.mean(values, dtype=np.float64)))
        for metric, values in replay.metrics.items():
            assert values.shape == (26, 3)
            if over.any():
                assert_same_bits(values[step, over], numpy_of(infos["episode"][metric])[[4, 0, 1]][over], metric)
            ended += over.sum()
    assert ended >= 3 * len(replay.metrics)
    for role, sums in replay.returns().items():  # the environment adds up in float32
        assert sums == pytest.approx(np.concatenate(returns[role]), rel=1e-5, abs=1e-5)
    assert_same_bits(watched.get_state(), alone.get_state())
    assert_same_bits(watched.observe(), alone.observe())
    assert watched.simulation.program_source() == before


REDUCED: Mapping[str, Callable[[np.ndarray], Any]] = {
    "last": lambda values: values[-1],
    "mean": lambda values: np.add.accumulate(values)[-1] / values.dtype.type(len(values)),
    "sum": lambda values: np.add.accumulate(values)[-1],
    "max": np.max,
}


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", OWN)
def test_between_they_are_what_the_episode_has_so_far(name: str, precision: str, device: str) -> None:
    """A plain loop over the recorded states finds the same bits; where an episode begins there is nothing yet."""
    env = made(name, 4, device, precision=precision)
    replay = record(env, policy=acting(env), steps=40, seed=5)
    x = replay.state["x"]
    if name == "FLOCK":
        size = np.add.accumulate(abs(x), -1)[..., -1]
        now = {"last": x[..., -1], "mean": size, "sum": (x > 2).sum(-1).astype(precision), "highest": x[..., 0]}
    else:
        trail = replay.state["trail"]
        now = {"last": x, "mean": x / x.dtype.type(2), "sum": trail[..., 2], "highest": x - trail[..., 0]}
    for metric, found in env.env_spec.metrics.items():
        values = replay.metrics[metric]
        assert values.dtype == precision
        for replica in range(4):
            first = 0
            for number in range(41):
                if number == first:
                    assert np.isnan(values[number, replica])
                    continue
                steps = now[metric][first + 1 : number + 1, replica]
                assert_same_bits(np.array(REDUCED[found.reduce](steps)), values[number, replica], metric)
                first = number + 1 if replay.ends[number, replica] != GOES_ON else first
            assert first > 0


def test_an_episode_that_had_begun_is_measured_whole(device: str) -> None:
    env, other = (made("DRIFTER", 3, device) for _ in range(2))
    for each in (env, other):
        each.reset(seed=1)
    whole = record(other, policy=acting(other), steps=8)
    act = acting(env)
    for _ in range(3):
        env.step(act(None))
    part = record(env, policy=act, steps=5)
    assert part.elapsed.tolist() == [3, 3, 3]
    for metric, values in part.metrics.items():
        assert_same_bits(values[1:], whole.metrics[metric][4:], metric)


def test_those_that_are_done_have_none(device: str) -> None:
    replay = record("CartPole-v1", replicas=5, device=device)
    late = np.arange(replay.frames)[:, None] > replay.last
    assert late.any()
    for values in replay.metrics.values():
        assert not values[late].any()
        assert np.isfinite(values[1:]).all()


def test_there_may_be_none(tmp_path: Path, device: str) -> None:
    env = gpu_envs.VectorEnv(drawn(walk(tmp_path)), 3, device=device)
    env.reset(seed=0)
    source = env.simulation.program_source()
    with env.measured() as so_far:
        assert so_far is None
        assert env.simulation.program_source() == source
    replay = record(env, steps=9)
    assert replay.metrics == replay.measured == {}
    assert "metrics" not in about_of(page.text(replay))


# --- what the page shows ---


def about_of(page_text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page_text.partition('id="about">')[2].partition("</script>")[0])
    return found


@pytest.fixture(scope="module")
def carts() -> Replay:
    return record("CartPole-v1", replicas=3, episodes=3, seed=6, device="cpu")


def test_what_is_measured_comes_on_top(carts: Replay) -> None:
    """What else a page holds stays as it is."""
    without = about_of(page.text(dataclasses.replace(carts, metrics={}, measured={})))
    about = about_of(page.text(carts))
    assert about.pop("measured") > max(without["rewards"], without["ends"])
    assert [metric["name"] for metric in about.pop("metrics")] == ["position", "angle"]
    assert about == without


def captions(tab: Tab) -> list[list[str]]:
    """The words above each metric's chart."""
    found: list[list[str]] = tab.run(
        "[...document.querySelectorAll('#metrics figcaption')].map((it) => [...it.children].map((e) => e.textContent))"
    )
    return found


def test_metrics_are_told(carts: Replay, opened: Open) -> None:
    """Of all replicas and of one, at any time, and of the episodes that have ended."""
    tab = opened(carts)
    assert text(tab, "#measured h2") == "Metrics so far"
    first_ended = int(np.flatnonzero(carts.ends.any(1))[0])
    for number in (0, 1, first_ended, first_ended + 1, int(carts.last.min()) + 1, carts.steps):
        set_to(tab, "scrub", number)
        for chosen in ("all", "1"):
            set_to(tab, "replica", chosen)
            which = [0, 1, 2] if chosen == "all" else [1]
            found = captions(tab)
            assert [row[:2] for row in found] == [[n, metric.description] for n, metric in carts.measured.items()]
            for (*_, now, mean, same), values in zip(found, carts.metrics.values(), strict=True):
                shown = [values[min(number, carts.last[r]), r] for r in which]
                known = [value for value in shown if not np.isnan(value)]
                ended = [values[t, r] for r in which for t in np.flatnonzero(carts.ends[: number + 1, r])]
                assert same == ""
                assert (
                    now == ""
                    if not known
                    else float(now.removeprefix("now ")) == pytest.approx(np.mean(known), rel=1e-3)
                )
                words = {0: "", 1: "1 episode "}.get(len(ended), f"mean of {len(ended)} episodes ")
                assert mean.startswith(words)
                assert not ended or float(mean.rpartition(" ")[2]) == pytest.approx(np.mean(ended), rel=1e-3)


def test_teams_have_them_and_reductions_are_named(opened: Open) -> None:
    tab = opened(record(made("FLOCK", 2, "cpu"), steps=5, seed=0))
    words = [["last"], ["mean", "a share (mean)"], ["sum", "(sum)"], ["highest", "(max)"]]
    assert [row[:-3] for row in captions(tab)] == words  # before "now ...", the mean, and "all alike"


def coloured(tab: Tab, number: int, colour: tuple[int, int, int]) -> np.ndarray:
    """Where a metric's canvas has a colour of its own, ``[height, width]``."""
    tab.run(f"document.querySelectorAll('#metrics canvas')[{number}].id = 'metric{number}'")
    pixels = tab.canvas(f"#metric{number}").astype(int)
    return np.asarray(abs(pixels - np.array(colour)).sum(-1) < 90)


def cursor(tab: Tab) -> float:
    """How far along the first metric's chart the line at the time is."""
    pixels = tab.canvas("#metric0")
    dark = ((pixels.max(-1) < 200) & (np.ptp(pixels, -1) < 10)).sum(0)
    assert dark.max() > 60
    return float(dark.argmax() / dark.size)


def test_charts_are_drawn(opened: Open) -> None:
    """As high as the values are, with a gap where the next episode begins, marks at ends and a line at the time."""
    env = made("DRIFTER", 1, "cpu")
    replay = record(env, policy=acting(env), steps=19, seed=2)
    ramp = np.arange(20.0)[:, None] % 10
    ends = np.where(ramp == 9, 2, 0).astype(np.uint8)
    values = np.where(ramp == 0, np.nan, ramp)
    replay = dataclasses.replace(replay, metrics=dict.fromkeys(replay.metrics, values), ends=ends)
    tab = opened(replay)
    set_to(tab, "scrub", 5)
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
    set_to(tab, "scrub", 19)
    assert cursor(tab) - before > 0.6
    tab.click(*middle_of(tab, "#metrics canvas", 0.55, 0.5))
    assert frame(tab) == pytest.approx(10, abs=2)
    tab.press("ArrowRight")
    assert captions(tab)[0][-3] == f"now {values[frame(tab), 0]:g}"
    tab.click(*middle_of(tab, "#metrics canvas", 0.999, 0.5))
    assert frame(tab) == 19


def test_others_are_faint(carts: Replay, opened: Open) -> None:
    tab = opened(carts)
    green = (30, 132, 73)
    all_of_them = np.count_nonzero(coloured(tab, 0, green))
    set_to(tab, "replica", "1")
    one = np.count_nonzero(coloured(tab, 0, green))
    pale = np.count_nonzero((tab.canvas("#metric0").max(-1) > 200) & (np.ptp(tab.canvas("#metric0"), -1) > 10))
    assert one > 2 * all_of_them
    assert pale > 100


def test_values_that_are_no_numbers_spoil_nothing(carts: Replay, opened: Open) -> None:
    position, angle = carts.metrics.values()
    infinite = np.where(np.arange(carts.frames)[:, None] == 3, np.inf, position)
    tab = opened(dataclasses.replace(carts, metrics={"position": infinite, "angle": np.full_like(angle, np.nan)}))
    set_to(tab, "scrub", 2)
    set_to(tab, "replica", "1")
    assert captions(tab)[0][2].startswith("now 0.")
    assert captions(tab)[1][2] == ""
    assert np.count_nonzero(coloured(tab, 0, (30, 132, 73))) > 50


def test_without_metrics_there_is_no_place_for_them(tmp_path: Path, opened: Open) -> None:
    env = gpu_envs.VectorEnv(drawn(walk(tmp_path)), 2, device="cpu")
    tab = opened(record(env, steps=9, seed=0))
    assert tab.run("document.getElementById('measured').clientHeight") == 0
    assert tab.run("document.querySelectorAll('figure').length") == 1
