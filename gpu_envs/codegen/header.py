"""Headers at the start of every program: the dialect, and the author's rules."""

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
    """Return file name and C++ of an environment's rules: the author's header, or translated Python rules.

    Compiler messages contain the name, which is the absolute path of an author's file.
    """
    spec = config.spec
    if spec.rules_text is not None:
        return spec.rules_text
    if isinstance(spec.header, Rules):
        from gpu_envs.translation.translate import translate_rules

        return spec.header.file, translate_rules(spec, config.params)
    name, text = _find_header(spec, spec.header)
    for function, pattern, required, reason, missing in _optional_functions(spec):
        if required and not re.search(rf"\b{function}\s*\(", blanked(text)):
            problem = f"{reason}, but {name} has no function {function}(...)"
            raise ValueError(f"{spec.id}: {problem}: write it, or change the spec")
        if not required and missing and re.search(pattern, blanked(text)):
            problem = f"{name} has {function}(...), but the spec has no {missing}"
            raise ValueError(f"{spec.id}: {problem}: add it, or remove the function")
    return name, text


def _optional_functions(spec: Spec) -> Iterator[tuple[str, str, bool, str, str]]:
    """Yield each optional function: name, regex, whether required, why, and what the spec lacks (``""``: allowed)."""
    hint = "action_mask=True (or action_mask=False, which disables masks)" if spec.action_mask is None else ""
    yield "allow", r"\bvoid\s+allow\s*\(", spec.masked, "action_mask=True", hint
    metrics = f"metrics names {', '.join(spec.metrics)}"
    yield "measure", r"\bvoid\s+measure\s*\(", bool(spec.metrics), metrics, "metrics={'name': Metric()}"
    if isinstance(spec, TeamSpec):
        world = r"\s*\(\s*const\s+World\b"
        yield "active", rf"\bbool\s+active{world}", spec.active_heads, "active_heads=True", "active_heads=True"
        pattern, shared = rf"\bvoid\s+observe_shared{world}", spec.has_shared_observations
        yield "observe_shared", pattern, shared, "a role has a shared_observation", "role with a shared_observation"


@functools.lru_cache(64)
def _using_declarations(code: str) -> str:
    """Return using declarations for the functions of ``elementary.cuh`` that a header calls and does not define."""
    names = [name for name in ELEMENTARY_NAMES if re.search(rf"(?<![\w.:>])\b{name}\s*\(", code)]
    return " ".join(f"using elementary::{name};" for name in names if not declares(code, name))


def _find_header(spec: Spec, header: str | Path) -> tuple[str, str]:
    """Return path and text of a header, from the spec's folder, else the working directory, or from this package."""
    bare = Path(header).parent == Path()
    folders = [] if spec.source_file is None else [spec.source_file.parent]
    candidates = [folder / header for folder in (*folders, *([] if bare and folders else [Path.cwd()]))]
    for path in candidates:
        if path.is_file():
            return str(path.absolute()), path.read_text("utf-8", "replace")
    packaged = importlib.resources.files("gpu_envs.kernels") / "environments" / str(header)
    if bare and packaged.is_file():
        return str(header), packaged.read_text("utf-8")
    similar = [path.name for folder in {path.parent for path in candidates} for path in folder.glob("*.cuh")]
    raise FileNotFoundError(
        f"{spec.id}: found no header {str(header)!r}{did_you_mean(Path(header).name, similar)} "
        f"Tried: {', '.join(map(str, dict.fromkeys(candidates)))}{', and the headers of gpu_envs/kernels' * bare}"
    )


def common_parts(layout: Layout, rules: str) -> list[tuple[str, str]]:
    """Return the parts that every program starts with; in a checked build arrays know their lengths."""
    checked = layout.config.checked
    return [
        *([("generated", "#define CHECKED")] if checked else []),
        *headers(*DIALECT_HEADERS),
        ("generated", f"using real = {layout.real};"),
        ("generated", f"constexpr bool STATISTICS = {str(layout.config.statistics).lower()};  // recorded"),
        *headers(
            *MATH_HEADERS,
            ELEMENTARY_HEADER,
            *(["dialect/distributions.cuh"] if layout.drawn else []),
            "drivers/actions.cuh",
            "drivers/limit.cuh",
            "dialect/checked.cuh" if checked else "dialect/table.cuh",
        ),
        ("generated", _using_declarations(blanked(rules))),
    ]
