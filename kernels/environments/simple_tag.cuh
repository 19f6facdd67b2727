// Slow adversaries catch faster agents among obstacles: simple_tag of the Multi Particle Environments.

FN bool is_prey(int i) { return i >= NUM_ADVERSARIES; }

// The j-th prey other than agent i.
FN int visible_prey(int i, int j) { return is_prey(i) ? particles::other(i, NUM_ADVERSARIES + j) : NUM_ADVERSARIES + j; }

FN particles::Disc disc(const Params& p, int k) {
    if (k >= AGENTS) return {p.obstacle_size, 0, 0};
    return is_prey(k) ? particles::Disc{p.agent_size, p.agent_drive, p.agent_max_speed}
                      : particles::Disc{p.adversary_size, p.adversary_drive, p.adversary_max_speed};
}

FN void reset(World& w, const Params&, Team& team) { particles::scatter(w, team, NUM_OBSTACLES, real(0.9)); }

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT_NO_WAIT(first, 1) w.collisions = w.caught = 0;
    particles::move(w, p, team, actions, NUM_OBSTACLES, disc);
    FOR_EACH_AGENT(j, NUM_GOOD) {
        const int i = NUM_ADVERSARIES + j;
        int touching = 0;
        for (int k = 0; k < NUM_ADVERSARIES; ++k) {
            touching += particles::touch(particles::squared_apart(w, i, k), p.agent_size + p.adversary_size);
        }
        w.reward[i] = -p.catch_reward * real(touching) - particles::price_outside(w, i);
        if (touching > 0) {
            add(w.collisions, touching);
            add(w.caught, 1);
        }
    }
    FOR_EACH_AGENT(i, NUM_ADVERSARIES) {
        w.reward[i] = p.catch_reward * real(w.collisions);
        if (i == 0) w.terminated = p.terminate_on_success && w.caught == NUM_GOOD && !team.last_step;
    }
}

FN void look(World&, const Params&, Team&) {}

FN void observe(const World& w, const Params&, int i, const Row& row) {
    int at = particles::see_place(w, i, row, particles::see_velocity(w, i, row, 0));
    at = particles::see_landmarks(w, i, row, at, NUM_OBSTACLES, NUM_LANDMARK_NEIGHBORS);
    at = particles::see_other_agents(w, i, row, at, NUM_AGENT_NEIGHBORS);
    if constexpr (NUM_AGENT_NEIGHBORS == 0) {
        FOR_EACH_COLUMN(j, NUM_GOOD - is_prey(i)) {
            particles::see_velocity(w, visible_prey(i, j), row, at + 2 * j);
        }
    } else {
        particles::by_distance(w.x, w.y, AGENTS, i, w.x[i], w.y[i], NUM_AGENT_NEIGHBORS, [&](int k, int j) {
            if (j >= 0 && is_prey(j)) particles::see_velocity(w, j, row, at + 2 * k);
            else particles::write(row, at + 2 * k, 0, 0);
        });
    }
}

FN void measure(World& w, const Params&, Team& team, Metrics& metrics) {
    FOR_EACH_AGENT(first, 1) metrics.collisions = real(w.collisions);
}
