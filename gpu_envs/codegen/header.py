"""The headers that a program is made of: the dialect, and the author's rules."""

import functools
import importlib.resources
import re
from collections.abc import Iterator
from pathlib import Path

from gpu_envs.backend.program import DIALECT_HEADERS, ELEMENTARY_HEADER, ELEMENTARY_NAMES, MATH_HEADERS, headers
from gpu_envs.backend.text import blanked, declares
from gpu_envs.codegen.layout import Layout, SimulationConfig
from gpu_envs.errors import did_you_mean
from gpu_envs.specs.base import Spec
from gpu_envs.specs.rules import Rules
from gpu_envs.specs.team import TeamSpec


def rules_part(config: SimulationConfig) -> tuple[str, str]:
    """Name and text of the header with an environment's rules: the author's, or the translation of Python rules.

    The name is that in compilers' messages: of an author's own file its absolute path.
    """
    spec = config.spec
    if spec.rules_text is not None:
        return spec.rules_text
    if isinstance(spec.header, Rules):
        from gpu_envs.translation.translate import translate_rules

        return spec.header.file, translate_rules(spec, config.params)
    name, text = _found_header(spec, spec.header)
    for function, begins, wanted, asked, missing in _optional(spec):
        if wanted and not re.search(rf"\b{function}\s*\(", blanked(text)):
            raise ValueError(f"{spec.id}: {asked}, but {name} has no function {function}(...)")
        if not wanted and missing and re.search(begins, blanked(text)):
            raise ValueError(f"{spec.id}: {name} has {function}(...), but the spec has no {missing}")
    return name, text


def _optional(spec: Spec) -> Iterator[tuple[str, str, bool, str, str]]:
    """Functions that not all rules have: name, how it begins, whether it is asked for, by what, and what is missing."""
    hint = "action_mask=True: add it, or action_mask=False to do without" if spec.action_mask is None else ""
    yield "allow", r"\bvoid\s+allow\s*\(", spec.masked, "action_mask=True", hint
    metrics = f"metrics names {', '.join(spec.metrics)}"
    yield "measure", r"\bvoid\s+measure\s*\(", bool(spec.metrics), metrics, "metrics={'name': Metric()}"
    if isinstance(spec, TeamSpec):
        world = r"\s*\(\s*const\s+World\b"
        yield "active", rf"\bbool\s+active{world}", spec.active_heads, "active_heads=True", "active_heads=True"
        sharing = "a role has a shared_observation"
        missing = "role with a shared_observation"
        yield "observe_shared", rf"\bvoid\s+observe_shared{world}", spec.has_shared_observations, sharing, missing


@functools.lru_cache(64)
def _imported(code: str) -> str:
    """What lets a header call those of ``elementary.cuh`` by their names, besides those that it has of its own."""
    called = [name for name in ELEMENTARY_NAMES if re.search(rf"(?<![\w.:>])\b{name}\s*\(", code)]
    return " ".join(f"using elementary::{name};" for name in called if not declares(code, name))


def _found_header(spec: Spec, header: str | Path) -> tuple[str, str]:
    """Name and text of an author's header: beside the file that has the spec, or one of this package's."""
    bare = Path(header).parent == Path()
    folders = [] if spec.source_file is None else [spec.source_file.parent]
    own = [folder / header for folder in (*folders, *([] if bare and folders else [Path.cwd()]))]
    for path in own:
        if path.is_file():
            return str(path.absolute()), path.read_text("utf-8", "replace")
    ours = importlib.resources.files("gpu_envs.kernels") / "environments" / str(header)
    if bare and ours.is_file():
        return str(header), ours.read_text("utf-8")
    beside = [path.name for folder in {path.parent for path in own} for path in folder.glob("*.cuh")]
    raise FileNotFoundError(
        f"{spec.id}: there is no header {str(header)!r}{did_you_mean(Path(header).name, beside)} "
        f"Tried: {', '.join(map(str, dict.fromkeys(own)))}{', and the headers of gpu_envs/kernels' * bare}"
    )


def opening(layout: Layout, rules: str) -> list[tuple[str, str]]:
    """What every source of these rules begins with: in a checked build all arrays know their lengths."""
    checked = layout.config.checked
    return [
        *([("generated", "#define CHECKED")] if checked else []),
        *headers(*DIALECT_HEADERS),
        ("generated", f"using real = {layout.real};"),
        ("generated", f"constexpr bool STATISTICS = {str(layout.config.statistics).lower()};  // are kept of episodes"),
        *headers(
            *MATH_HEADERS,
            ELEMENTARY_HEADER,
            *(["dialect/distributions.cuh"] if layout.drawn else []),
            "drivers/actions.cuh",
            "drivers/limit.cuh",
            "dialect/checked.cuh" if checked else "dialect/table.cuh",
        ),
        ("generated", _imported(blanked(rules))),
    ]
