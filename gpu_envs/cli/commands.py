"""The commands, each imported when it is run: listing environments takes no trainer."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Command(NamedTuple):
    """A word that ``gpu-envs`` understands."""

    summary: str
    """What it does, in a few words."""
    place: str
    """The function, as ``module:name`` of this package: it takes the rest of the command line, and returns the exit
    code."""
    trains: bool = False
    """Whether the function takes what trains, too: what has ``train``, ``resume`` and ``evaluate``."""

    def run(self, words: Sequence[str], trainer: Any = None) -> int:
        """Runs the function; ``trainer`` None: ``gpu_envs.training``."""
        module, _, name = self.place.partition(":")
        function = getattr(importlib.import_module(f"gpu_envs.cli.{module}"), name)
        return int(function(words, trainer) if self.trains else function(words))


COMMANDS: Mapping[str, Command] = {
    "demo": Command("train, measure and show, on one page", "demo:demo"),
    "train": Command("train policies for an environment, or go on with a run", "train:train", trains=True),
    "tune": Command("measure how many replicas suit a run on a device", "train:tune", trains=True),
    "eval": Command("say how well the policies of a run do", "train:evaluate", trains=True),
    "new": Command("write an environment of your own, to begin with", "new:new"),
    "check": Command("look for mistakes in an environment", "check:check"),
    "list": Command("list the environments and their parameters", "listing:list_environments"),
    "info": Command("say what is installed here, what is missing, and how to get it", "info:info"),
    "bench": Command("measure steps a second on the devices here", "bench:bench"),
    "show": Command("print the C++ that an environment is compiled from", "show:show"),
    "play": Command("show what the policies of a run do, as a page or a video", "play:play"),
    "completion": Command("print what makes a shell complete all this", "completion:completion"),
}
"""Every command by its word."""
