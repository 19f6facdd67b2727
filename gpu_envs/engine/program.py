"""The compiled kernels of an environment: what each is called with, and its launch."""

from collections.abc import Mapping, Sequence
from typing import Any, final

from gpu_envs.backend.arrays import Array, Arrays
from gpu_envs.backend.base import Backend, Kernels, Launch
from gpu_envs.backend.program import Program
from gpu_envs.codegen import RESULTS, Layout, generate

OPTIONAL = ("final_obs", "episode_return", "episode_length", "episode_metrics")
"""Those that have a place of their own, and are written elsewhere too only where the user says so."""


@final
class EnvProgram:
    """The kernels of one layout, bound to a simulation's memory. Parameters and flags are the simulation's to write.

    Attributes:
        layout: What the kernels were generated from.
        calls: What each kernel is called with.
        launch: Runs each.
        kernels: What has each kernel.
    """

    def __init__(self, layout: Layout, buffers: Mapping[str, Array], arrays: Arrays, backend: Backend) -> None:
        """Compiles what a single step needs."""
        self.layout = layout
        self._buffers, self._arrays, self._backend = buffers, arrays, backend
        self._always = frozenset(layout.buffers())  # those that are no views
        self.calls: dict[str, Any] = {}
        self.launch: dict[str, Launch] = {}
        self.kernels: dict[str, Kernels] = {}
        self.places: dict[str, list[tuple[str, Any]]] = {}
        self.load(layout.modules[0])
        self.step_call, self.launch_step = self.calls["step"], self.launch["step"]
        self.step_places, self.reset_places = ([place for _, place in self.places[name]] for name in ("step", "reset"))
        self.acting = [place for place in self.step_places if hasattr(place, "actions")]
        self.own_places = {  # where a step writes what is not asked for elsewhere
            (i, name): getattr(place, name)
            for i, place in enumerate(self.step_places)
            for name in RESULTS
            if hasattr(place, name)
        }
        self.inspected = [place for _, place in self.places["inspect"] if hasattr(place, "actions")]

    def load(self, module: str) -> Sequence[Any]:
        """Compiles a driver and prepares its launches; returns what its kernels are called with."""
        layout = self.layout
        program = generate(layout, module)
        kernels = self._backend.load(program)
        made = {name: struct() for name, struct in program.calls.items()}
        for call in made.values():
            self._write_buffers(call)
            if hasattr(call, "limit"):
                call.limit = layout.config.limit
        launches = {name: kernels.bind(name, call, layout.config.num_envs) for name, call in made.items()}
        self.calls |= made
        self.places |= {name: layout.places(call) for name, call in made.items()}
        self.launch |= launches
        self.kernels |= dict.fromkeys(made, kernels)
        return list(made.values())

    def join(self, program: Program) -> tuple[Any, Launch]:
        """Compiles another's kernel that steps these replicas; returns what it is called with, and its launch.

        Its struct has a ``step``, what a step is called with: parameters and flags are written to it as to the others.
        """
        ((name, struct),) = program.calls.items()
        call = struct()
        self._write_buffers(call.step)
        call.step.limit = self.layout.config.limit
        launch = self._backend.load(program).bind(name, call, self.layout.config.num_envs)
        self.calls[name] = call.step
        return call, launch

    def _write_buffers(self, call: Any) -> None:
        call.buffers.count = self.layout.config.num_envs
        targets = [("", call.buffers), *self.layout.places(call)]
        targets += [
            (f"{name}.", getattr(call.buffers, name)) for name in ("state", "scratch") if hasattr(call.buffers, name)
        ]
        for affix, target in targets:
            for name, *_ in target._fields_:
                self._write_address(target, name, affix)

    def _write_address(self, target: Any, name: str, affix: str) -> None:
        """Points a struct's member to the buffer of that name, where there is one of its own."""
        buffer = affix + name if affix.endswith(".") else name + affix
        if buffer in self._buffers and (name not in OPTIONAL or buffer in self._always):
            setattr(target, name, self._arrays.address(self._buffers[buffer]))
