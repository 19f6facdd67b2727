// Alice sends Bob a message by a key that both know; Eve, who hears it too, should not understand: simple_crypto of the
// Multi Particle Environments. Nobody moves, and what is understood is what Eve and Bob say.

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

// How far what agent i says is from the message; zero where it says nothing.
FN real mistake(const World& w, int i) {
    real sum = 0;
    bool silent = true;
    for (int word = 0; word < WORDS; ++word) {
        const real said = w.c(i, word), wrong = said - real(word == w.goal);
        sum += wrong * wrong;
        silent &= said == 0;
    }
    return silent ? real(0) : sum;
}

FN void step(World& w, const Params&, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) particles::say(w, i, actions[i], WORDS, false);
    FOR_EACH_AGENT(i, AGENTS) {
        const real eve = mistake(w, first_of(EVE));
        w.reward[i] = role_of(i) == EVE ? -eve : eve - mistake(w, first_of(BOB));
    }
}

FN void look(World&, const Params&, Team&) {}

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
