"""Which kernels compute the policies of a run."""

from gpu_envs.backend.program import Device
from gpu_envs.codegen import layout_of
from gpu_envs.training.assembly import case_of
from gpu_envs.training.engines import choose
from gpu_envs.training.engines.small import SmallEngine
from gpu_envs.training.operations.act_and_step import steps_where_it_acts
from gpu_envs.training.rollout.horizon_env import role_infos, simulated
from gpu_envs.training.rollout.policy_rows import assign, learns
from gpu_envs.training.run import Run

_HORIZON = "kernel_act_and_step of small/act_and_step.cuh, a whole horizon with its steps"


def who_computes(config: Run, device: str) -> list[str]:
    """Lines for people about each policy of a run that learns.

    Args:
        config: The run.
        device: ``cpu`` or ``cuda:N``, which need not be there.
    """
    world = simulated(config, 1, "cpu")
    lines = []
    for name, parts in assign(role_infos(world), config.policies).items():
        if not learns(name):
            continue
        case = case_of(parts[0].role, config.of_policy(name), device)
        engine, reason = choose(case)
        net, described = case.network, dict(engine.describe(case))
        if isinstance(engine, SmallEngine) and steps_where_it_acts(
            layout_of(world, Device(on_gpu=True)), config.params
        ):
            described["acting"] = _HORIZON
        layers = " x ".join(map(str, net.hidden))
        norm = ", normalised" if net.layer_norm else ""
        trunk = ", one trunk for actor and critic" if net.shared_trunk else ""
        lines.append(
            f"{name}: {case.features} features, {layers} {net.activation}{norm}{trunk}, {net.precision}, {device}"
        )
        lines += [f"  {what:<10}{kernels}" for what, kernels in described.items()]
        lines += [f"  why {engine.name}: {reason}"] if reason else []
    return lines
