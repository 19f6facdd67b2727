"""The compiled kernels of an environment, their argument structs and their launches."""

from collections.abc import Mapping, Sequence
from typing import Any, final

from gpu_envs.backend.arrays import Array, Arrays
from gpu_envs.backend.base import Backend, Kernels, Launch
from gpu_envs.backend.program import Program
from gpu_envs.codegen import RESULTS, Layout, generate

OPTIONAL_OUTPUTS = ("final_obs", "episode_return", "episode_length", "episode_metrics")
"""Results of ended episodes. A layout may store them as views of a buffer that kernels write anyway, ``records``; their
own pointers in the step's arguments are then null, unless the user passes arrays."""


@final
class EnvProgram:
    """The kernels of one layout, bound to a simulation's memory; ``Simulation`` writes parameters and flags.

    Attributes:
        layout: The layout that the kernels were generated from.
        args: The argument struct of each kernel.
        launch: The launch of each kernel.
        kernels: The compiled module of each kernel.
        parts: For each kernel, the structs in its arguments that point to actions and results, one per role or per key
            of a Dict, with the suffix of their results' names.
    """

    def __init__(self, layout: Layout, buffers: Mapping[str, Array], arrays: Arrays, backend: Backend) -> None:
        """Compile the kernels of single steps and resets; the kernel of rollouts needs ``load("rollout")``."""
        self.layout = layout
        self._buffers, self._arrays, self._backend = buffers, arrays, backend
        self._allocated = frozenset(layout.buffers())  # names of the buffers that are not views
        self.args: dict[str, Any] = {}
        self.launch: dict[str, Launch] = {}
        self.kernels: dict[str, Kernels] = {}
        self.parts: dict[str, list[tuple[str, Any]]] = {}
        self.load(layout.modules[0])
        self.step_args, self.launch_step = self.args["step"], self.launch["step"]
        self.step_parts, self.reset_parts = ([part for _, part in self.parts[name]] for name in ("step", "reset"))
        self.step_action_parts = [part for part in self.step_parts if hasattr(part, "actions")]
        self.buffer_addresses = {  # where a step writes results for which the user passes no array
            (i, name): getattr(part, name)
            for i, part in enumerate(self.step_parts)
            for name in RESULTS
            if hasattr(part, name)
        }
        self.inspect_action_parts = [part for _, part in self.parts["inspect"] if hasattr(part, "actions")]

    def load(self, module: str) -> Sequence[Any]:
        """Compile a module of the layout and prepare its launches; return the argument structs of its kernels."""
        layout = self.layout
        program = generate(layout, module)
        kernels = self._backend.load(program)
        module_args = {name: struct() for name, struct in program.calls.items()}
        for args in module_args.values():
            self._point_to_buffers(args)
            if hasattr(args, "limit"):
                args.limit = layout.config.limit
        launches = {name: kernels.bind(name, args, layout.config.num_envs) for name, args in module_args.items()}
        self.args |= module_args
        self.parts |= {name: layout.result_structs(args) for name, args in module_args.items()}
        self.launch |= launches
        self.kernels |= dict.fromkeys(module_args, kernels)
        return list(module_args.values())

    def bind_stepping_kernel(self, program: Program) -> tuple[Any, Launch]:
        """Compile a kernel of another program that steps these replicas; return its argument struct and its launch.

        The struct's member ``step`` has the arguments of a step; it gets parameters and flags like other kernels.
        """
        ((name, struct),) = program.calls.items()
        args = struct()
        self._point_to_buffers(args.step)
        args.step.limit = self.layout.config.limit
        launch = self._backend.load(program).bind(name, args, self.layout.config.num_envs)
        self.args[name] = args.step
        return args, launch

    def _point_to_buffers(self, args: Any) -> None:
        """Point members of a kernel's structs to buffers of the same name, except optional views; set ``count``."""
        args.buffers.count = self.layout.config.num_envs
        nested = [name for name in ("state", "scratch") if hasattr(args.buffers, name)]
        structs = [("", args.buffers), *self.layout.result_structs(args)]
        for affix, struct in (*structs, *((f"{name}.", getattr(args.buffers, name)) for name in nested)):
            for name, *_ in struct._fields_:
                buffer = affix + name if affix.endswith(".") else name + affix
                if buffer in self._buffers and (name not in OPTIONAL_OUTPUTS or buffer in self._allocated):
                    setattr(struct, name, self._arrays.address(self._buffers[buffer]))
