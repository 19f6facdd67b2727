"""As many agents as landmarks cover all landmarks, and avoid collisions."""

from gpu_envs.envs import particles
from gpu_envs.pictures import Params
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.team import Role, TeamSpec


def _observation_size(params: Params) -> int:
    agents = params["num_agent_neighbors"] or params["N"] - 1
    return int(4 + 2 * (params["num_landmark_neighbors"] or params["N"]) + 4 * agents)


SIMPLE_SPREAD = TeamSpec(
    id="SimpleSpread-v3",
    header="simple_spread.cuh",
    description="As many agents as landmarks cover all landmarks, and avoid collisions.",
    roles=(Role("agent", "N", particles.observation(_observation_size), particles.action()),),
    state=particles.AGENT_STATE,
    shared=particles.landmarks(lambda params: int(params["N"])),
    scratch={**particles.CONTACT_SCRATCH, "gap": Field(), "touching": Field("int")},
    shared_scratch={"distance": Field(), "collisions": Field("int"), "occupied": Field("int")},
    params={
        "N": Param(3, "number of agents, and of landmarks", positive=True, fixed=True),
        "local_ratio": Param(0.5, "weight of an agent's own collisions in its reward", minimum=0, maximum=1),
        **particles.common(),
        "terminate_on_success": Param(False, "end an episode when all landmarks are occupied"),
        **particles.neighbours(),
        "agent_size": Param(0.15, "radius of an agent", positive=True),
        "capture_radius": Param(0.1, "maximum distance at which an agent occupies a landmark", positive=True),
        **particles.contacts(),
    },
    metrics={
        "collisions": Metric("number of colliding pairs", "sum"),
        "distance": Metric("distance of the nearest agent, summed over landmarks"),
        "occupied": Metric("number of occupied landmarks"),
    },
    start_fields=particles.START_FIELDS,
    start_rule=particles.start_rule(),
    max_episode_steps=particles.limit,
    drawing=particles.drawing(
        particles.agents(particles.BLUE, "agent_size", 0, "N", "agent"),
        particles.marks(particles.DARK, 0.05, 0, "N", "landmark"),
    ),
)
