"""Names in a spec are usable in C++, or refused with the spec and the name."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from nvrtc import H200, nvrtc_missing, ptx_of
from small_envs import CHASE, WALK, chase, walk

from gpu_envs import Field, Metric, MultiAgentEnv, Param, Uniform, VectorEnv
from gpu_envs.backend.program import Device
from gpu_envs.codegen import AUTORESET_MODES, PRECISIONS, SimulationConfig, generate, layout_of
from gpu_envs.specs import names
from gpu_envs.specs.base import Spec

ALLOW_ONE = "FN void allow(const State& s, const Params& p, Mask& mask) {}"
ALLOW_TEAM = "FN void allow(const World& w, const Params& p, int i, const Mask& mask) {}"

MEASURE_ONE = "FN void measure(const State& s, const Params& p, Metrics& metrics) {}"
MEASURE_TEAM = "FN void measure(World& w, const Params& p, Team& team, Metrics& metrics) {}"


def test_parameters_and_fields_may_have_any_name_that_the_drivers_use(tmp_path: Path, device: str) -> None:
    names = ("i", "k", "env", "count", "params", "replica", "base", "nothing", "value")
    fields = ("s", "j", "to", "get", "set", "load", "store")
    total = "".join(f" + p.{n} * real({10**j})" for j, n in enumerate(names[:6]))
    spec = walk(
        tmp_path,
        reset=f"{WALK['reset']} s.at[0] = 0;{''.join(f' s.{n} = 0;' for n in fields)}",
        step=f"s.x = real(0){total}; s.at[0] += 2;{''.join(f' s.{n} += real(1);' for n in fields)} return {{p.i, 0}};",
        more={
            "params": {n: Param(float(j + 1)) for j, n in enumerate(names)},
            "state": {**{n: Field() for n in ("x", "pace", *fields)}, "at": Field("int", lambda _: 1)},
        },
    )
    env = VectorEnv(spec, 3, device=device, i=[0.5, 1.5, 2.5])
    env.reset(seed=0)
    _, rewards, *_ = env.step(np.zeros(3, int))
    assert rewards.tolist() == [0.5, 1.5, 2.5]
    assert np.allclose(env.state["x"], 654320 + np.array([0.5, 1.5, 2.5]))
    assert all(env.state[name].tolist() == [1] * 3 for name in fields)
    assert env.state["at"].tolist() == [[2]] * 3


def test_a_choice_is_an_enum(tmp_path: Path, device: str) -> None:
    words = ("semi-implicit", "a_b", "random", "State", "euler2")
    step = "return {real(int(p.kind) + 10 * (p.kind == Kind::semi_implicit)), 0};"
    spec = walk(tmp_path, step=step, more={"params": {"kind": Param(words[0], "Which.", choices=words)}})
    found = []
    for word in words:
        env = VectorEnv(spec, 1, device=device, kind=word)
        env.reset(seed=0)
        found.append(float(env.step(np.zeros(1, int))[1][0]))
    assert found == [10, 1, 2, 3, 4]


def test_a_description_may_be_any_text(tmp_path: Path, device: str) -> None:
    texts = ("two\nlines", "a path C:\\", "*/ /* // ?", 'a "quote', "")
    params = {f"p{j}": Param(float(j), text) for j, text in enumerate(texts)}
    spec = walk(tmp_path, step="s.x = p.p1 + p.p4; return {p.p2, 0};", more={"params": params})
    env = VectorEnv(spec, 1, device=device)
    env.reset(seed=0)
    assert float(env.step(np.zeros(1, int))[1][0]) == 2
    assert env.state["x"].tolist() == [5]


ONE: Any = {
    **{
        f"the word {w}": {"params": {w: Param(1.0)}}
        for w in ("nullptr", "decltype", "bitor", "static_cast", "char16_t")
    },
    **{f"the field {w}": {"state": ("x", "pace", w)} for w in ("nullptr", "noexcept", "co_await", "Index", "u8", "FN")},
    **{f"the parameter {w}": {"params": {w: Param(1.0)}} for w in ("get", "Index", "Params", "UNROLL")},
    **{f"the option {w}": {"options": {w: Param(1.0)}} for w in ("get", "Random")},
    **{
        f"the choice {w}": {"params": {w: Param("a", choices=("a", "b"))}}
        for w in ("random", "action", "actions", "mask", "state", "key", "record", "outcome", "part")
    },
    **{
        f"the choices {c}": {"params": {"start": Param(c[0], choices=c)}}
        for c in (("default", "random"), ("1d", "2d"), ("a b", "c"), ("a-b", "a_b"), ("FN", "b"), ("", "b"), ("a", "a"))
    },
    "the same enum": {"params": {n: Param("a", choices=("a", "b")) for n in ("go_on", "go__on")}},
}
TEAM: Any = {
    **{
        f"the fixed parameter {w}": {"params": {w: Param(3, fixed=True)}}
        for w in ("agents", "blocks", "teams", "threads", "roles", "lanes", "step", "host", "hunter")
    },
    **{
        f"the role {w}": {"roles": w}
        for w in ("host", "block", "step", "agents", "fn", "unroll", "reset", "disabled", "terminated", "pi")
    },
    **{
        f"the field {w}": {"state": {w: Field()}}
        for w in ("put", "store", "store_shared", "World", "Fetched", "nullptr")
    },
    **{f"scratch {w}": {"scratch": {w: Field()}} for w in ("put", "World")},
    "two of the same capitals": {"params": {w: Param(3, fixed=True) for w in ("size", "Size")}},
}


@pytest.mark.parametrize("what", ONE)
def test_reserved_names(tmp_path: Path, what: str) -> None:
    with pytest.raises(ValueError, match=r"^Walk-v0: ") as caught:
        walk(tmp_path, more=ONE[what])
    changed = next(iter(ONE[what].values()))
    assert any(repr(name) in str(caught.value) for name in changed)


@pytest.mark.parametrize("what", TEAM)
def test_reserved_names_of_teams(tmp_path: Path, what: str) -> None:
    changes = dict(TEAM[what])
    spec = chase(tmp_path)
    if "roles" in changes:
        role = spec.roles[0]
        changes["roles"] = (type(role)(changes["roles"], 1, role.observation, role.action), spec.roles[1])
    changes["params"] = {**spec.params, **changes.get("params", {})}
    with pytest.raises(ValueError, match=r"^Chase-v0: ") as caught:
        chase(tmp_path, more=changes)
    given = TEAM[what]
    names = [given["roles"]] if "roles" in given else [name for part in given.values() for name in part]
    assert any(repr(name) in str(caught.value) for name in names)


def test_reserved_keys_of_observations(tmp_path: Path) -> None:
    spec = walk(tmp_path, more={"observation": Dict({"Elements": Box(-1, 1, (1,), np.float32)})})
    with pytest.raises(ValueError, match="Walk-v0: the observation's part 'Elements' has a name that the headers use"):
        VectorEnv(spec, device="cpu")


def test_names_reserved_for_single_agents_only(tmp_path: Path, device: str) -> None:
    more = {
        "params": {
            **chase(tmp_path).params,
            "actions": Param("few", choices=("few", "many"), fixed=True),
            "size": Param(2, fixed=True),
            "length": Param(2.0, fixed=True),
            "width": Param(2.0, fixed=True),
        },
        "state": {"x": Field(), "i": Field(), "at": Field("int"), "get": Field("int", 2)},
    }
    reset = CHASE["reset"].replace(
        "if (i", "w.i[i] = SIZE; w.at[i] = ACTIONS == Actions::many; w.get[i * 2] = w.get[i * 2 + 1] = 7; if (i"
    )
    spec = chase(tmp_path, more=more, reset=reset)
    env = MultiAgentEnv(spec, 2, device=device)
    env.reset(seed=0)
    assert env.state["i"].tolist() == [[2.0] * 4] * 2
    if not nvrtc_missing():
        config = SimulationConfig(spec, 4, "SameStep", "float32", 20, spec.check_params({}, 4))
        ptx_of(generate(layout_of(config, H200), "multi_agent").source)


def programs(spec: Spec) -> Iterator[str]:
    """Programs around the rules for all options, without comments and namespaces."""
    drawn: tuple[dict[str, Any], ...] = ({}, {"pull": Uniform(0, 1)})
    for mode, precision, on_gpu, checked, rules in itertools.product(
        AUTORESET_MODES, PRECISIONS, (False, True), (False, True), drawn
    ):
        config = SimulationConfig(spec, 5, mode, precision, 7, spec.check_params({}, 1), checked, drawn=rules)
        layout = layout_of(config, H200 if on_gpu else Device(on_gpu=False))
        for module in layout.modules:
            parts = re.split(r'^#line 1 "(.*)"$', generate(layout, module).source, flags=re.MULTILINE)
            own = (text for name, text in zip(parts[1::2], parts[2::2], strict=True) if name != str(spec.header))
            text = re.sub(r"^namespace (\w+) \{.*?^\}  // namespace \1", "", "".join(own), flags=re.M | re.S)
            yield re.sub(r"//.*", "", text)


@pytest.mark.parametrize("make", [walk, chase])
def test_the_lists_of_reserved_names_are_complete(tmp_path: Path, make: Any) -> None:
    """Types, macros and constants, compared with generated programs."""
    allow = ALLOW_ONE if make is walk else ALLOW_TEAM
    types, macros, constants = set(), set(), set()
    for masked in (False, True):
        measure = MEASURE_ONE if make is walk else MEASURE_TEAM
        counts = {} if make is walk else {name: Param(2, fixed=True) for name in ("num_hunters", "num_prey")}
        more = {"params": {**counts, "pull": Param(1.0)}, "metrics": {"far": Metric()} if masked else {}}
        further = f"{allow}\n{measure if masked else ''}"
        spec = make(tmp_path, more={"action_mask": masked, **more}, further=further)
        for text in programs(spec):
            types |= set(
                re.findall(
                    r"^(?:template <[^{;]*> *)?(?:struct|enum(?: class)?|using) +(?:alignas\(\d+\) )?(\w+)", text, re.M
                )
            )
            macros |= set(re.findall(r"^ *# *define +([A-Z]\w*)", text, re.M))
            constants |= set(re.findall(r"^constexpr +\w+ +([A-Z]\w*)", text, re.M))
            for body in re.findall(r"^enum +\w[^{;]*\{([^}]*)\}", text, re.M):
                constants |= set(re.findall(r"([A-Za-z_]\w*) *(?:=[^,}]*)?(?:,|$)", body))
    assert len(types) > 20
    assert len(macros) > 8
    assert types - names.TYPES <= {"alignas", "real", "class"}
    assert macros <= names.MACROS | names.TYPES
    if make is chase:
        assert len(constants) > 40
        assert constants - names.CONSTANTS == {"HUNTER", "PREY", "NUM_HUNTERS", "NUM_PREY"}
