"""Fields, parameters and tables that no spec may have are named when it is written."""

from collections.abc import Callable
from typing import Any

import pytest
from wrong_specs import one

from gpu_envs import Field, Param, Table

SPECS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "type": (lambda: {"state": {"x": Field("float")}}, "a field's type is 'float'; allowed: real, int, byte"),
    "length": (lambda: {"state": {"x": Field("int", 0)}}, "a field's length is 0; at least 1"),
    "agent": (lambda: {"state": {"x": Field("agent")}}, "the field 'x' is of type 'agent', which only a team has"),
    "name": (lambda: {"state": {"class": Field()}}, "the field 'class' must be a name in both C++ and Python"),
    "twice": (lambda: {"params": {"x": Param(1.0)}}, "['x'] named more than once among state, params"),
    "table": (lambda: {"tables": {"map": Table([[1.5]], "int")}}, "holds numbers that int32 cannot hold"),
    "text": (lambda: {"tables": {"map": Table("text")}}, "give numbers in one to three dimensions"),
}


@pytest.mark.parametrize("case", SPECS)
def test_a_spec_names_what_is_wrong(case: str) -> None:
    changes, expected = SPECS[case]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared
        one(**changes())
    assert expected in str(caught.value)
