"""A speaker, which cannot move, tells a listener which landmark to go to."""

from gpu_envs.envs import particles
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.team import Role, TeamSpec

LANDMARKS = WORDS = 3

SIMPLE_SPEAKER_LISTENER = TeamSpec(
    id="SimpleSpeakerListener-v4",
    header="simple_speaker_listener.cuh",
    description="A speaker, which cannot move, tells a listener which landmark to go to.",
    roles=(
        Role("speaker", 1, particles.observation(3), particles.action(moves=False, words=WORDS)),
        Role("listener", 1, particles.observation(11), particles.action()),
    ),
    state={**particles.AGENT_STATE, "c": Field("real", WORDS)},
    shared={**particles.landmarks(lambda _: LANDMARKS), "goal": Field("int")},
    params=particles.common(),
    metrics={"distance": Metric("distance of the listener from the goal")},
    start_fields=(*particles.START_FIELDS, "c", "goal"),
    start_rule=particles.start_rule(LANDMARKS),
    max_episode_steps=particles.limit,
    drawing=particles.drawing(
        particles.marks(particles.RED, 0.04, 0, 1),
        particles.marks(particles.GREEN, 0.04, 1, 1),
        particles.marks(particles.BLUE, 0.04, 2, 1),
        particles.agents(particles.GREY, 0.075, 0, 1, "speaker"),
        particles.agents(particles.DARK, 0.075, 1, 1, "listener"),
        goals=True,
        words=WORDS,
        speakers=(0,),
    ),
)
