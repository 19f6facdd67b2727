// An agent goes to a landmark: simple of the Multi Particle Environments.

FN void reset(World& w, const Params&, Team& team) { particles::scatter(w, team, 1); }

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) {
        particles::drift(w, p, i, actions[i], p.drive);
        w.reward[i] = -particles::squared_from(w, i, 0);
    }
}

FN void look(World&, const Params&, Team&) {}

FN void observe(const World& w, const Params&, int i, const Row& row) {
    particles::see_landmark(w, i, 0, row, particles::see_velocity(w, i, row, 0));
}

FN void measure(World& w, const Params&, Team& team, Metrics& metrics) {
    FOR_EACH_AGENT(i, 1) metrics.distance = square_root(particles::squared_from(w, i, 0));
}
