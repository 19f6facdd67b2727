// Alice sends Bob a message, encrypted with a shared key, that Eve should not decode: simple_crypto of the Multi
// Particle Environments. Agents do not move; Bob's and Eve's outputs are their decoded messages.

constexpr int MESSAGES = 2, WORDS = 4;

FN void reset(World& w, const Params&, Team& team) {
    FOR_EACH_AGENT_NO_WAIT(i, AGENTS) {
        if (i == 0) {
            w.goal = particles::chosen(team, MESSAGES, MESSAGES);
            w.key  = particles::chosen(team, MESSAGES, MESSAGES + 1);
        }
        for (int word = 0; word < WORDS; ++word) w.c(i, word) = 0;
    }
    particles::scatter(w, team, MESSAGES);
}

// The squared distance of agent i's output from the one-hot goal; zero if it is silent.
FN real mistake(const World& w, int i) {
    real sum = 0;
    bool silent = true;
    for (int word = 0; word < WORDS; ++word) {
        const real output = w.c(i, word), error = output - real(word == w.goal);
        sum += error * error;
        silent &= output == 0;
    }
    return silent ? real(0) : sum;
}

// Reward: Eve's is minus her mistake; the others' is hers minus Bob's.
FN void step(World& w, const Params&, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) particles::say(w, i, actions[i], WORDS, false);
    FOR_EACH_AGENT(i, AGENTS) {
        const real eve = mistake(w, first_of(EVE));
        w.reward[i] = role_of(i) == EVE ? -eve : eve - mistake(w, first_of(BOB));
    }
}

FN void look(World&, const Params&, Team&) {}

// Writes a message to a row, one-hot, from column `at` on; returns the next column.
FN int see_message(const Row& row, int at, int message) {
    for (int word = 0; word < WORDS; ++word) row[at + word] = word == message;
    return at + WORDS;
}

FN void observe(const World& w, const Params&, int i, const Row& row) {
    if (role_of(i) == ALICE) {
        see_message(row, see_message(row, 0, w.goal), w.key);
    } else {
        particles::hear(w, first_of(ALICE), row, role_of(i) == BOB ? see_message(row, 0, w.key) : 0, WORDS);
    }
}

FN void measure(World& w, const Params&, Team& team, Metrics& metrics) {
    FOR_EACH_AGENT(first, 1) {
        metrics.mistake     = mistake(w, first_of(BOB));
        metrics.eve_mistake = mistake(w, first_of(EVE));
    }
}
