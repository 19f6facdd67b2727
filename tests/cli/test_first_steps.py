"""What those who write their first environment try: it works, or the message says what to write instead."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from small_envs import walk
from wrong_specs import one

import gpu_envs
from gpu_envs import EnvSpec, MultiAgentEnv, Param, Table, VectorEnv
from gpu_envs.adapters.opening import opened
from gpu_envs.specs.params import ARGUMENTS

pytestmark = pytest.mark.usefixtures("forgets")


# --- rules ---

_ALLOW = "FN void allow(const State& s, const Params& p, Mask& mask) { mask[0] = s.x < real(0); }\n"


def test_masks_that_the_spec_forgot(tmp_path: Path) -> None:
    spec = walk(tmp_path)
    assert isinstance(spec.header, Path)
    text = spec.header.read_text()
    spec.header.write_text(f"{text}// {_ALLOW}/* {_ALLOW} */\nFN bool allow(int a) {{ return a > 0; }}\n")
    gpu_envs.make(spec, device="cpu").close()  # neither a comment nor a function of another kind
    spec.header.write_text(text + _ALLOW)
    with pytest.raises(ValueError, match=r"has allow\(\.\.\.\), but the spec has no action_mask=True"):
        VectorEnv(spec, device="cpu")


# --- a spec where an id is taken ---


@pytest.fixture(name="spec")
def _spec(tmp_path: Path) -> EnvSpec:
    made: EnvSpec = walk(tmp_path)
    return made


def test_make_takes_a_spec(spec: EnvSpec) -> None:
    env = gpu_envs.make(spec, 3, device="cpu")
    assert env.num_envs == 3
    assert gpu_envs.spec(spec.id) is spec
    assert opened(spec, 2, "SameStep", {"device": "cpu"}, output="torch").num_envs == 2


def test_the_id_of_another(spec: EnvSpec) -> None:
    gpu_envs.register(spec)
    other = one(id=spec.id)
    for use in (gpu_envs.make, gpu_envs.register):
        with pytest.raises(ValueError, match=r"is taken by another .* gpu_envs\.register\(spec, replace=True\)"):
            use(other)
    assert gpu_envs.spec(spec.id) is spec
    gpu_envs.register(other, replace=True)
    assert gpu_envs.spec(spec.id) is other


# --- names ---


def test_names_of_arguments_are_no_parameters() -> None:
    taken = {name for kind in (VectorEnv, MultiAgentEnv) for name in inspect.signature(kind.__init__).parameters}
    assert set(ARGUMENTS) == {*taken, "id", "env_id", "seed"} - {"params"}
    for where in ("params", "options"):
        for name in ARGUMENTS:
            with pytest.raises(ValueError, match=f"^Wrong-v0: {where}: {name!r} is an argument of gpu_envs.make"):
                one(**{where: {name: Param(1.0)}})


def test_a_field_that_is_named_twice() -> None:
    with pytest.raises(ValueError, match=r"^Wrong-v0: state names 'x' more than once"):
        one(state=("x", "y", "x"))


# --- values ---


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Param(0.4, minimum=1), "the default 0.4 is not allowed: give a finite number of at least 1"),
        (lambda: Param(0, positive=True), "the default 0 is not allowed: give a whole number above 0"),
        (lambda: Param("a", choices=("b",)), "the default 'a' is not allowed: give one of 'b'"),
        (
            lambda: Param(2**40),
            "the default 1099511627776 is not allowed: give a whole number (of 32 bits: -2147483647 to 2147483647)",
        ),
        (
            lambda: Param(3).check("count", -(2**31), 1),
            "parameter 'count' got -2147483648; allowed: a whole number (of 32 bits: -2147483647 to 2147483647)",
        ),
        (lambda: Table([1.0, float("nan")]), "a table holds NaN (the first at [1]), which is not allowed"),
        (
            lambda: Table([[1.0, 2.0], [3.0]]),
            "a table's rows are not all of one length; give numbers in one to three dimensions",
        ),
    ],
)
def test_values(make: Any, said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the whole message is looked at
        make()
    assert str(caught.value).startswith(said)
