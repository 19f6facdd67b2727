"""Alice sends Bob a message that Eve receives but should not understand."""

from gpu_envs.envs import particles
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.team import Role, TeamSpec

MESSAGES, WORDS = 2, 4

SIMPLE_CRYPTO = TeamSpec(
    id="SimpleCrypto-v3",
    header="simple_crypto.cuh",
    description="Alice sends Bob a message that Eve receives but should not understand.",
    roles=(
        Role("eve", 1, particles.observation(WORDS), particles.action(moves=False, words=WORDS)),
        Role("bob", 1, particles.observation(2 * WORDS), particles.action(moves=False, words=WORDS)),
        Role("alice", 1, particles.observation(2 * WORDS), particles.action(moves=False, words=WORDS)),
    ),
    state={**particles.AGENT_STATE, "c": Field("real", WORDS)},
    shared={**particles.landmarks(lambda _: MESSAGES), "goal": Field("int"), "key": Field("int")},
    params=particles.common(drive=None),
    metrics={
        "mistake": Metric("squared error of Bob's answer"),
        "eve_mistake": Metric("squared error of Eve's answer"),
    },
    start_fields=(*particles.START_FIELDS, "c", "goal", "key"),
    start_rule=particles.start_rule(MESSAGES),
    max_episode_steps=particles.limit,
    drawing=particles.drawing(
        particles.marks(particles.GREY, 0.05, 0, MESSAGES, "message"),
        particles.agents(particles.DARK, 0.05, 1, 2, "alice and bob"),
        particles.agents(particles.RED, 0.05, 0, 1, "eve"),
        goals=True,
        words=WORDS,
        speakers=(0, 1, 2),
    ),
)
