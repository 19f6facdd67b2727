"""Measured figures in README and docs are generated from results: a typed figure is out of date after a change."""

import re
from pathlib import Path

import pytest

from benchmarks.pages import comparisons, headlines
from benchmarks.pages.__main__ import DOCS
from benchmarks.pages.headlines import FIGURES

PAGES = [DOCS.parent / "README.md", *(path for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts)]

NOT_PROSE = re.compile(
    r"""<!--\ made:\ \S+\ -->.*?<!--\ end\ -->  # generated
    | ^\ *(`{3,}).*?^\ *\1                        # code blocks
    | `(?:[^`\n]|\n(?!\n))+`                      # code in a sentence
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)

NUMBER = r"\d[\d.,]*"
FIGURE = re.compile(
    rf"""(?<![\w.]){NUMBER}\s?
    (?: [kMGT]\b | [kMGT]?i?B(?:/s)?\b              # 41.8 G, 4.2 TB/s
    | [num\u00b5]?s\b | (?:seconds?|min|minutes?|h|hours?)\b
    | times\b | x\b(?!\ ?[-+*/\d`])               # 6.5x, but not 64 x 64
    | %
    | (?:[\w-]+\ )?\w+(?:/s\b|\ (?:a|per)\ second) # 500 steps/s
    )
    | \babout\ \[?{NUMBER}
    """,
    re.VERBOSE,
)

ALLOWED = {
    r"9[59] % (?:confidence )?intervals?": "the definition of an interval",
    r"(?:first|last)\s40 % of the (?:steps|run)": "a setting of a preset",
    r"5 times the word": "the coding of an action",
    r"30\sseconds": "limits of the launcher, which tests check",
    r"after 12 seconds": "a limit of tune",
    r"every 30 s\b": "the interval of progress lines",
    r"within 5 % of the\sfastest": "the definition of the knee",
    r"1 GiB at most": "a limit of the wide networks' kernels",
}
"""Patterns of numbers that are no measurements, and what they are. A limit, a default or a setting belongs here."""


def typed_figures(text: str) -> list[str]:
    """Returns the numbers in prose and tables that look measured, with their line and the words around them."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    prose = NOT_PROSE.sub(blank, text)
    for pattern in ALLOWED:
        prose = re.sub(pattern, blank, prose)
    return [
        f"line {prose.count(chr(10), 0, match.start()) + 1}: {prose[max(match.start() - 40, 0) : match.end() + 20]!r}"
        for match in FIGURE.finditer(prose)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS.parent)))
def test_figures_are_generated(page: Path) -> None:
    """A measured number is in a generated block (benchmarks/pages); no number is better than a typed one."""
    assert typed_figures(page.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "A step takes 7 us on the host.",
        "at 4 M replicas",
        "It takes\n2.55 G steps/s.",
        "23 times as many as",
        "6.5x as fast",
        "and 221x.",
        "busy in 88 % of cycles",
        "compiles in 0.3 to 2.2 s; later",
        "the same | 0.25 ms; mean return |",
        "| 512 | 393 k |",
        "a copy of 4.25 TB/s",
        "makes 1,551 updates/s",
        "some 500 steps per second",
        "needs about 400,000 steps",
        "needs about [400,000](a.md) steps",
        "takes [35 us](benchmarks.md#planning).",
        "took 13 to 40 s for 15,000 episodes",
        "<!-- made: a -->1 s<!-- end --> and 2 s",
        "`a` in 3 ms and `b`",
    ],
)
def test_a_typed_figure_is_found(text: str) -> None:
    assert len(typed_figures(f"# Page\n\n{text}\n")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "two layers of 64 x 64, 500 steps, 65,536 replicas, 10 + 100 agents",
        "with [CUDA 13](a.md), Python 3.11 or newer, 8 GPUs",
        "exp(2x - 2) above 1",
        "<!-- made: step-us -->[7 us](benchmarks.md)<!-- end --> per step",
        "<!-- made: a -->\n| 1 us |\n<!-- end -->",
        "```text\ntook 3 s\n```",
        "  ```\n  12 s\n  ```",
        "`sleep 5 s`, and `k // 3, k\n% 3 s`",
        "with a 95 % interval",
        "in the last\n40 % of the run",
    ],
)
def test_other_numbers_are_not_found(text: str) -> None:
    assert typed_figures(f"# Page\n\n{text}\n") == []


def test_every_allowed_pattern_is_used() -> None:
    """The list stays short: a pattern that no page needs hides figures."""
    texts = [path.read_text() for path in PAGES]
    assert [pattern for pattern in ALLOWED if not any(re.search(pattern, text) for text in texts)] == []


def test_the_readme_repeats_speeds_of_the_benchmarks() -> None:
    """A reader finds each speed of the README, with its number of replicas."""
    speeds = [cell for row in headlines.speeds(PAGES[0]).splitlines()[2:] for cell in row.split(" | ")[1:]]
    found = {cell.strip(" |") for cell in speeds if cell.strip(" |")}
    assert len(found) > 10
    assert found <= set(comparisons.peers_cuda(PAGES[0]).split(" | "))


def test_every_figure_of_a_sentence_is_used() -> None:
    texts = [path.read_text() for path in PAGES]
    assert [name for name in FIGURES if not any(f"<!-- made: {name} -->" in text for text in texts)] == []
