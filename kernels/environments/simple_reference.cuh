// Two agents that know each other's goals and send messages: simple_reference of the Multi Particle Environments.

constexpr int LANDMARKS = 3, WORDS = 10;

FN int goal_of(const World& w, int i) { return clip(w.goal[i], 0, LANDMARKS - 1); }

FN void reset(World& w, const Params&, Team& team) {
    FOR_EACH_AGENT_NO_WAIT(i, AGENTS) {
        w.goal[i] = particles::chosen(team, LANDMARKS, LANDMARKS + i);
        for (int word = 0; word < WORDS; ++word) w.c(i, word) = 0;
    }
    particles::scatter(w, team, LANDMARKS);
}

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) {
        particles::drift(w, p, i, actions[i], p.drive);
        particles::say(w, i, actions[i], WORDS, true);
    }
    FOR_EACH_AGENT(i, AGENTS) w.gap[i] = square_root(particles::squared_from(w, 1 - i, goal_of(w, i)));
    FOR_EACH_AGENT(i, AGENTS) {
        const real mean = (w.gap[0] + w.gap[1]) / 2;
        w.reward[i] = -mean * (1 - p.local_ratio) - w.gap[i] * p.local_ratio;
    }
}

FN void look(World&, const Params&, Team&) {}

FN void observe(const World& w, const Params&, int i, const Row& row) {
    int at = particles::see_velocity(w, i, row, 0);
    at = particles::see_landmarks(w, i, row, at, LANDMARKS);
    at = particles::see_colour(row, at, 0.25f, 0.5f, goal_of(w, i));
    particles::hear(w, 1 - i, row, at, WORDS);
}

FN void measure(World& w, const Params&, Team& team, Metrics& metrics) {
    FOR_EACH_AGENT(first, 1) metrics.distance = (w.gap[0] + w.gap[1]) / 2;
}
