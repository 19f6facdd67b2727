// An agent goes to one landmark of two, and an adversary keeps it away: simple_push of the Multi Particle Environments.

constexpr int LANDMARKS = 2;

FN particles::Disc disc(const Params& p, int) { return {p.agent_size, p.drive, infinity<real>()}; }
FN int goal_of(const World& w) { return clip(w.goal, 0, LANDMARKS - 1); }

FN void reset(World& w, const Params&, Team& team) {
    FOR_EACH_AGENT_NO_WAIT(first, 1) w.goal = particles::chosen(team, LANDMARKS, LANDMARKS);
    particles::scatter(w, team, LANDMARKS);
}

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    particles::move(w, p, team, actions, 0, disc);
    FOR_EACH_AGENT(i, AGENTS) w.gap[i] = square_root(particles::squared_from(w, i, goal_of(w)));
    FOR_EACH_AGENT(i, AGENTS) w.reward[i] = i == 0 ? w.gap[1] - w.gap[0] : -w.gap[1];
}

FN void look(World&, const Params&, Team&) {}

FN void observe(const World& w, const Params&, int i, const Row& row) {
    int at = particles::see_velocity(w, i, row, 0);
    if (i == 0) {
        at = particles::see_landmarks(w, i, row, at, LANDMARKS);
    } else {
        at = particles::see_landmark(w, i, goal_of(w), row, at);
        at = particles::see_colour(row, at, 0.25f, 0.5f, goal_of(w) + 1);
        at = particles::see_landmarks(w, i, row, at, LANDMARKS);
        for (int k = 0; k < LANDMARKS; ++k) at = particles::see_colour(row, at, 0.1f, 0.8f, k + 1);
    }
    particles::see_other_agents(w, i, row, at);
}

FN void measure(World& w, const Params&, Team& team, Metrics& metrics) {
    FOR_EACH_AGENT(first, 1) {
        metrics.distance           = w.gap[1];
        metrics.adversary_distance = w.gap[0];
    }
}
