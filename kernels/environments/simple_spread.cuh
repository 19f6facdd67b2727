// N agents cover N landmarks without collisions: simple_spread of the Multi Particle Environments.

FN particles::Disc disc(const Params& p, int) { return {p.agent_size, p.drive, infinity<real>()}; }

FN void reset(World& w, const Params&, Team& team) { particles::scatter(w, team, N); }

// Reward: -(1 - local_ratio) * landmarks' summed distances from their nearest agents - local_ratio * agent's touches.
FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT_NO_WAIT(first, 1) w.collisions = w.occupied = 0;
    particles::move(w, p, team, actions, 0, disc);
    FOR_EACH_AGENT(i, N) {  // agent i and landmark i
        real nearest = infinity<real>();
        int  touching = 0;
        for (int j = 0; j < N; ++j) {
            nearest = minimum(nearest, particles::squared_from(w, j, i));
            touching += j != i && particles::touch(particles::squared_apart(w, i, j), 2 * p.agent_size);
        }
        w.touching[i] = touching;
        w.gap[i]      = square_root(nearest);
        if (touching > 0) add(w.collisions, touching);
        if (w.gap[i] < p.capture_radius) add(w.occupied, 1);
    }
    sum_over(team, w.distance, N, [&](int k) { return w.gap[k]; });
    FOR_EACH_AGENT(i, N) {
        w.reward[i] = -w.distance * (1 - p.local_ratio) - real(w.touching[i]) * p.local_ratio;
        if (i == 0) w.terminated = p.terminate_on_success && w.occupied == N && !team.last_step;
    }
}

FN void look(World&, const Params&, Team&) {}

FN void observe(const World& w, const Params&, int i, const Row& row) {
    constexpr int messages = 2 * (NUM_AGENT_NEIGHBORS == 0 ? N - 1 : NUM_AGENT_NEIGHBORS);  // zeros, as all are silent
    int at = particles::see_place(w, i, row, particles::see_velocity(w, i, row, 0));
    at = particles::see_landmarks(w, i, row, at, N, NUM_LANDMARK_NEIGHBORS);
    at = particles::see_other_agents(w, i, row, at, NUM_AGENT_NEIGHBORS);
    FOR_EACH_COLUMN(k, messages) row[at + k] = 0;
}

FN void measure(World& w, const Params&, Team& team, Metrics& metrics) {
    FOR_EACH_AGENT(first, 1) {
        metrics.collisions = real(w.collisions) / 2;
        metrics.distance   = w.distance;
        metrics.occupied   = real(w.occupied);
    }
}
