// A fixed speaker tells a listener its landmark: simple_speaker_listener of the Multi Particle Environments.

constexpr int LANDMARKS = 3, WORDS = 3;

FN int goal_of(const World& w) { return clip(w.goal, 0, LANDMARKS - 1); }

FN void reset(World& w, const Params&, Team& team) {
    FOR_EACH_AGENT_NO_WAIT(i, AGENTS) {
        if (i == 0) w.goal = particles::chosen(team, LANDMARKS, LANDMARKS);
        for (int word = 0; word < WORDS; ++word) w.c(i, word) = 0;
    }
    particles::scatter(w, team, LANDMARKS);
}

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) {
        if (role_of(i) == SPEAKER) particles::say(w, i, actions[i], WORDS, false);
        else particles::drift(w, p, i, actions[i], p.drive);
    }
    FOR_EACH_AGENT(i, AGENTS) w.reward[i] = -particles::squared_from(w, first_of(LISTENER), goal_of(w));
}

FN void look(World&, const Params&, Team&) {}

FN void observe(const World& w, const Params&, int i, const Row& row) {
    if (role_of(i) == SPEAKER) {
        particles::see_colour(row, 0, 0.15f, 0.5f, goal_of(w));
    } else {
        const int at = particles::see_landmarks(w, i, row, particles::see_velocity(w, i, row, 0), LANDMARKS);
        particles::hear(w, first_of(SPEAKER), row, at, WORDS);
    }
}

FN void measure(World& w, const Params&, Team& team, Metrics& metrics) {
    FOR_EACH_AGENT(first, 1) metrics.distance = square_root(particles::squared_from(w, first_of(LISTENER), goal_of(w)));
}
