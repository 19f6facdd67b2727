"""The commands of ``gpu-envs``. Each is in a module that is imported when the command runs."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Command(NamedTuple):
    """A command of ``gpu-envs``."""

    summary: str
    """A line of ``gpu-envs --help``."""
    entry_point: str
    """The function, as ``module:name`` of this package. It takes the arguments after the command's name and returns the
    exit code."""
    takes_trainer: bool = False
    """Whether the function's second argument is a trainer: an object with ``train``, ``resume`` and ``evaluate``."""

    def run(self, argv: Sequence[str], trainer: Any = None) -> int:
        """Run the command and return the exit code; training commands use ``trainer``, None: ``gpu_envs.training``."""
        module, _, name = self.entry_point.partition(":")
        function = getattr(importlib.import_module(f"gpu_envs.cli.{module}"), name)
        return int(function(argv, trainer) if self.takes_trainer else function(argv))


COMMANDS: Mapping[str, Command] = {
    "demo": Command("train two environments and write a page with replays and speeds", "demo:demo"),
    "train": Command("train policies for an environment, or resume a run", "train:train", takes_trainer=True),
    "tune": Command("measure which number of replicas trains fastest", "train:tune", takes_trainer=True),
    "sweep": Command("train many runs at once: seeds, and values of settings", "sweep:sweep"),
    "extract": Command("make a run directory of a run of a sweep", "sweep:extract"),
    "eval": Command("evaluate the policies of a run", "train:evaluate", takes_trainer=True),
    "compare": Command("compare runs with several seeds: tables and curves", "compare:compare"),
    "tournament": Command("let versions of a run's two sides play: scores and Elo ratings", "tournament:tournament"),
    "new": Command("create the files of a new environment", "new:new"),
    "check": Command("test an environment for mistakes", "check:check"),
    "list": Command("list the environments and their parameters", "listing:list_environments"),
    "info": Command("show what is installed, what is missing, and how to install it", "info:info"),
    "bench": Command("measure steps per second on the devices of this machine", "bench:bench"),
    "show": Command("print the C++ source of an environment", "show:show"),
    "play": Command("record the policies of a run as a page or a video", "play:play"),
    "export": Command("write the policies of a run for C++, web pages and other programs", "export:export"),
    "completion": Command("print a script for tab completion in a shell", "completion:completion"),
}
"""Every command by its name."""
