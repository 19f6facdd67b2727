// Moves the arguments of a policy that acts and of an environment's step to the next step's row of `count` replicas.
template <class Act> FN void advance(StepCall& step, Act& act, Index count) {
    step.observations += count * OBSERVATION_SIZE;
    step.rewards += count;
    step.terminations += count;
    step.truncations += count;
    step.episode_return += count;
    step.episode_length += count;
    if (step.final_obs != nullptr) step.final_obs += count * OBSERVATION_SIZE;
    advance_metrics_row(step, count);
    act.turn += 1;
    act.actions += count * acting::WIDTH;
    act.log_probs += count;
}
