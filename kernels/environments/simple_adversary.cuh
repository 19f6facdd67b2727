// Agents go to a landmark that an adversary does not know: simple_adversary of the Multi Particle Environments.

FN int goal_of(const World& w) { return clip(w.goal, 0, N - 1); }

FN void reset(World& w, const Params&, Team& team) {
    FOR_EACH_AGENT_NO_WAIT(first, 1) w.goal = particles::chosen(team, N, N);
    particles::scatter(w, team, N);
}

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) {
        particles::drift(w, p, i, actions[i], p.drive);
        w.gap[i] = square_root(particles::squared_from(w, i, goal_of(w)));
    }
    minimum_over(team, w.distance, N, [&](int k) { return w.gap[1 + k]; });
    FOR_EACH_AGENT(i, AGENTS) w.reward[i] = i == 0 ? -w.gap[0] : w.gap[0] - w.distance;
}

FN void look(World&, const Params&, Team&) {}

FN void observe(const World& w, const Params&, int i, const Row& row) {
    int at = i == 0 ? 0 : particles::see_landmark(w, i, goal_of(w), row, 0);
    at = particles::see_landmarks(w, i, row, at, N, NUM_LANDMARK_NEIGHBORS);
    particles::see_other_agents(w, i, row, at, NUM_AGENT_NEIGHBORS);
}

FN void measure(World& w, const Params&, Team& team, Metrics& metrics) {
    FOR_EACH_AGENT(first, 1) {
        metrics.distance           = w.distance;
        metrics.adversary_distance = w.gap[0];
    }
}
