"""Slower adversaries catch faster agents among obstacles."""

from gpu_envs.envs import particles
from gpu_envs.pictures import Params
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.team import Role, TeamSpec


def _observation_size(params: Params, prey: int) -> int:
    """Return the observation's size for an agent that observes the velocities of ``prey`` other agents."""
    agents = params["num_agent_neighbors"] or params["num_good"] + params["num_adversaries"] - 1
    landmarks = params["num_landmark_neighbors"] or params["num_obstacles"]
    return int(4 + 2 * landmarks + 2 * agents + 2 * (params["num_agent_neighbors"] or prey))


SIMPLE_TAG = TeamSpec(
    id="SimpleTag-v3",
    header="simple_tag.cuh",
    description="Slower adversaries catch faster agents among obstacles.",
    roles=(
        Role(
            "adversary",
            "num_adversaries",
            particles.observation(lambda params: _observation_size(params, params["num_good"])),
            particles.action(),
        ),
        Role(
            "agent",
            "num_good",
            particles.observation(lambda params: _observation_size(params, params["num_good"] - 1)),
            particles.action(),
        ),
    ),
    state=particles.AGENT_STATE,
    shared=particles.landmarks(lambda params: int(params["num_obstacles"])),
    scratch=particles.CONTACT_SCRATCH,
    shared_scratch={"collisions": Field("int"), "caught": Field("int")},
    params={
        "num_good": Param(1, "number of agents, which are chased", positive=True, fixed=True),
        "num_adversaries": Param(3, "number of adversaries", positive=True, fixed=True),
        "num_obstacles": Param(2, "number of landmarks, which are obstacles", minimum=0, fixed=True),
        **particles.common(drive=None),
        "terminate_on_success": Param(False, "end an episode when all agents are touched at once"),
        **particles.neighbours(),
        **particles.chasing(adversary_radius=0.075, agent_radius=0.05, catch_reward=10.0),
    },
    metrics={"collisions": Metric("collisions of adversaries with agents", "sum")},
    start_fields=particles.START_FIELDS,
    start_rule=particles.start_rule(),
    max_episode_steps=particles.limit,
    drawing=particles.drawing(
        particles.marks(particles.DARK, "obstacle_size", 0, "num_obstacles", "obstacle"),
        particles.agents(particles.RED, "adversary_size", 0, "num_adversaries", "adversary"),
        particles.agents(particles.GREEN, "agent_size", "num_adversaries", "num_good", "agent"),
    ),
)
