"""Adversaries with a leader that sees everything catch agents that hide in forests."""

from gpu_envs.envs import particles
from gpu_envs.pictures import Params
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.team import Role, TeamSpec

WORDS, MAX_FORESTS = 4, 31


def _landmarks(params: Params) -> int:
    return int(params["num_obstacles"] + params["num_food"] + params["num_forests"])


def _observation_size(params: Params, prey: int) -> int:
    """Return the observation's size for an agent that observes the velocities of ``prey`` other agents."""
    others = params["num_good"] + params["num_adversaries"] - 1
    return int(4 + 2 * _landmarks(params) + 2 * others + 2 * prey + params["num_forests"])


_adversary = particles.observation(lambda params: _observation_size(params, params["num_good"]) + WORDS)
_agent = particles.observation(lambda params: _observation_size(params, params["num_good"] - 1))

SIMPLE_WORLD_COMM = TeamSpec(
    id="SimpleWorldComm-v3",
    header="simple_world_comm.cuh",
    description="Adversaries with a leader that sees everything catch agents that hide in forests.",
    roles=(
        Role("leadadversary", 1, _adversary, particles.action(words=WORDS)),
        Role("adversary", lambda params: int(params["num_adversaries"]) - 1, _adversary, particles.action()),
        Role("agent", "num_good", _agent, particles.action()),
    ),
    state={**particles.AGENT_STATE, "c": Field("real", WORDS)},
    shared=particles.landmarks(_landmarks),
    scratch={**particles.CONTACT_SCRATCH, "within": Field("int")},
    shared_scratch={"collisions": Field("int")},
    params={
        "num_good": Param(2, "number of agents, which are chased", positive=True, fixed=True),
        "num_adversaries": Param(4, "number of adversaries, including the leader", minimum=2, fixed=True),
        "num_obstacles": Param(1, "number of landmarks that are obstacles", minimum=0, fixed=True),
        "num_food": Param(2, "number of landmarks that reward nearby agents", positive=True, fixed=True),
        "num_forests": Param(2, "number of landmarks that hide agents", minimum=0, maximum=MAX_FORESTS, fixed=True),
        **particles.common(drive=None),
        **particles.chasing(adversary_radius=0.075, agent_radius=0.045, catch_reward=5.0),
        "food_size": Param(0.03, "radius of food", positive=True),
        "forest_size": Param(0.3, "radius of a forest", positive=True),
    },
    metrics={"collisions": Metric("collisions of adversaries with agents", "sum")},
    start_fields=(*particles.START_FIELDS, "c"),
    start_rule=particles.start_rule(),
    max_episode_steps=particles.limit,
    drawing=particles.drawing(
        particles.marks(
            particles.LEAVES, "forest_size", lambda p: int(p["num_obstacles"] + p["num_food"]), "num_forests", "forest"
        ),
        particles.marks(particles.DARK, "obstacle_size", 0, "num_obstacles", "obstacle"),
        particles.marks(particles.BLUE, "food_size", "num_obstacles", "num_food", "food"),
        particles.agents(particles.RED, "adversary_size", 0, "num_adversaries", "adversary"),
        particles.agents(particles.GREEN, "agent_size", "num_adversaries", "num_good", "agent"),
        words=WORDS,
        speakers=(0,),
    ),
)
