// The kernel between the steps of a team's rollout: sums over the steps, and random actions.

// Adds an agent's results of a step to the rollout's sums. Only new ends of an agent count: inactive agents keep their
// flags until the episode ends, as frozen replicas do.
FN void accumulate(const BetweenCall& call, const RoleOfRollout& role, Index at, Index row, Index replica) {
    if (role.reward_sum != nullptr) {
        role.reward_sum[row] += role.rewards[row];
        role.terminated[row] += call.playing[at] && role.terminations[row] ? 1 : 0;
        role.truncated[row] += call.playing[at] && role.truncations[row] ? 1 : 0;
    }
    if (!call.finished[replica]) return;
    if (at == replica * call.agents) call.episodes[replica] += 1;
    if (role.return_sum == nullptr) return;
    role.return_sum[row] += call.episode_return[at];
    role.length_sum[row] += call.episode_length[at];
}

// Draws an agent's action by seed, episode, step and agent, uniformly or among the possible choices, into role.actions.
FN void draw_action(const BetweenCall& call, const RoleOfRollout& role, Index row, Index replica, int agent) {
    const bool* possible = role.action_mask == nullptr ? nullptr : role.action_mask + row * role.choices;
    Words words{};
    for (int j = 0; j < role.size; ++j) {
        if (j % 4 == 0)
            words = random_words(call.seeds[replica], RANDOM_ACTION, u32(agent), call.episode[replica],
                                 u32(call.elapsed[replica]), u32(j / 4));
        const u32   word = word_of(words, u32(j % 4));
        const Index to   = row * role.size + j;
        if (role.counts == nullptr) {
            float unit;
            to_unit(word, unit);
            static_cast<float*>(role.actions)[to] = role.low[j] + (role.high[j] - role.low[j]) * unit;
            continue;
        }
        const int choices = role.counts[j];
        const int chosen  = possible == nullptr ? int(u64(word) * u64(choices) >> 32) : random_choice(possible, choices, word);
        static_cast<i64*>(role.actions)[to] = role.starts[j] + chosen;
        if (possible != nullptr) possible += choices;
    }
}

// Adds the previous step's results to the sums, and draws the next actions, as the call asks: a thread per agent.
KERNEL(kernel_between, BetweenCall) {
    FOR_EACH_ENV(env, call.count) {
        FOR_EACH_LANE_ALONE(k, env) {
            const Index at = env.index(k), replica = at / call.agents;
            const int   agent = int(at - replica * call.agents);
            int r = 0;
            while (r + 1 < ROLES && agent >= call.role[r + 1].first) ++r;
            const RoleOfRollout& role = call.role[r];
            const Index row = replica * role.agents + (agent - role.first);
            if (call.after_step) accumulate(call, role, at, row, replica);
            if (!call.before_step) continue;
            call.playing[at] = call.in_game[at] && call.ended[replica] == 0;
            if (role.actions != nullptr) draw_action(call, role, row, replica, agent);
        }
    }
}
