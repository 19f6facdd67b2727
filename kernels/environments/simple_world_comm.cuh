// Adversaries, whose leader sees all agents and sends messages, catch agents that look for food and hide in forests:
// simple_world_comm of the Multi Particle Environments.

constexpr int WORDS = 4, FOOD = NUM_OBSTACLES, FORESTS = NUM_OBSTACLES + NUM_FOOD, LANDMARKS = FORESTS + NUM_FORESTS;

FN bool is_prey(int i) { return i >= NUM_ADVERSARIES; }

// The j-th prey other than agent i.
FN int visible_prey(int i, int j) { return is_prey(i) ? particles::other(i, NUM_ADVERSARIES + j) : NUM_ADVERSARIES + j; }

FN particles::Disc disc(const Params& p, int k) {
    if (k >= AGENTS) return {p.obstacle_size, 0, 0};
    return is_prey(k) ? particles::Disc{p.agent_size, p.agent_drive, p.agent_max_speed}
                      : particles::Disc{p.adversary_size, p.adversary_drive, p.adversary_max_speed};
}

FN void reset(World& w, const Params&, Team& team) {
    FOR_EACH_AGENT_NO_WAIT(i, AGENTS) {
        for (int word = 0; word < WORDS; ++word) w.c(i, word) = 0;
    }
    particles::scatter(w, team, LANDMARKS, real(0.9));
}

// A prey's reward for food that it touches, less a penalty for the distance to the nearest food.
FN real food_reward(const World& w, const Params& p, int i) {
    real nearest = infinity<real>(), sum = 0;
    for (int k = FOOD; k < FORESTS; ++k) {
        const real square = particles::squared_from(w, i, k);
        if (particles::touch(square, p.agent_size + p.food_size)) sum += 2;
        nearest = minimum(nearest, square);
    }
    return sum - real(0.05) * square_root(nearest);
}

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT_NO_WAIT(first, 1) {
        w.collisions = 0;
        particles::say(w, first, actions[first], WORDS, true);
    }
    particles::move(w, p, team, actions, NUM_OBSTACLES, disc);
    FOR_EACH_AGENT(j, NUM_GOOD) {
        const int i = NUM_ADVERSARIES + j;
        int touching = 0;
        for (int k = 0; k < NUM_ADVERSARIES; ++k) {
            touching += particles::touch(particles::squared_apart(w, i, k), p.agent_size + p.adversary_size);
        }
        w.reward[i] = -p.catch_reward * real(touching) - 2 * particles::price_outside(w, i) + food_reward(w, p, i);
        if (touching > 0) add(w.collisions, touching);
    }
    FOR_EACH_AGENT(i, NUM_ADVERSARIES) {
        real nearest = infinity<real>();
        for (int j = NUM_ADVERSARIES; j < AGENTS; ++j) nearest = minimum(nearest, particles::squared_apart(w, i, j));
        w.reward[i] = p.catch_reward * real(w.collisions) - real(0.1) * square_root(nearest);
    }
}

// Sets w.within[i] to a bit for each forest that agent i is in.
FN void look(World& w, const Params& p, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) {
        const real size = is_prey(i) ? p.agent_size : p.adversary_size;
        u32 within = 0;
        for (int k = 0; k < NUM_FORESTS; ++k) {
            within |= u32(particles::touch(particles::squared_from(w, i, FORESTS + k), size + p.forest_size)) << k;
        }
        w.within[i] = int(within);
    }
}

// Whether agent i sees agent j: both are outside of forests or in the same forest, or i is the leader.
FN bool sees(const World& w, int i, int j) {
    return i == 0 || (w.within[i] & w.within[j]) != 0 || (w.within[i] | w.within[j]) == 0;
}

FN void observe(const World& w, const Params&, int i, const Row& row) {
    int at = particles::see_place(w, i, row, particles::see_velocity(w, i, row, 0));
    at = particles::see_landmarks(w, i, row, at, LANDMARKS);
    FOR_EACH_COLUMN(k, AGENTS - 1) {
        const int  j    = particles::other(i, k);
        const bool seen = sees(w, i, j);
        particles::write(row, at + 2 * k, seen ? w.x[j] - w.x[i] : real(0), seen ? w.y[j] - w.y[i] : real(0));
    }
    at += 2 * (AGENTS - 1);
    const int prey = NUM_GOOD - is_prey(i), forests = is_prey(i) ? at : at + 2 * prey;
    const int velocities = is_prey(i) ? at + NUM_FORESTS : at;
    FOR_EACH_COLUMN(k, prey) {
        const int  j    = visible_prey(i, k);
        const bool seen = sees(w, i, j);
        particles::write(row, velocities + 2 * k, seen ? w.x_dot[j] : real(0), seen ? w.y_dot[j] : real(0));
    }
    FOR_EACH_COLUMN(k, NUM_FORESTS) row[forests + k] = (w.within[i] >> k & 1) != 0 ? 1.0f : -1.0f;
    if (!is_prey(i)) particles::hear(w, 0, row, forests + NUM_FORESTS, WORDS);
}

FN void measure(World& w, const Params&, Team& team, Metrics& metrics) {
    FOR_EACH_AGENT(first, 1) metrics.collisions = real(w.collisions);
}
