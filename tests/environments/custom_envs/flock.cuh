// Flock: birds drift, each on its own line. Their metrics use all kinds of reduction.

FN void reset(World& w, const Params& p, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) {
        Random random = team.random(RESET, i);
        w.x[i] = random.uniform(-p.start, p.start);
    }
}

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) {
        Random random = team.random(STEP, i, w.elapsed);
        w.x[i] += random.uniform(-1, 1) + real(0.1) * real(int(actions[i]) - 1);
        w.reward[i] = w.x[i];
        if (i == 0) w.out = 0;
    }
    FOR_EACH_AGENT(i, AGENTS) {
        if (w.x[i] > p.edge) add(w.out, 1);
    }
    FOR_EACH_AGENT(first, 1) w.terminated = 2 * w.out > AGENTS;
}

FN void look(World&, const Params&, Team&) {}

FN void observe(const World& w, const Params&, int i, const Row& row) { row[0] = float(w.x[i]); }

FN void measure(World& w, const Params&, Team& team, Metrics& metrics) {
    FOR_EACH_AGENT(i, AGENTS) w.size[i] = w.x[i] < 0 ? -w.x[i] : w.x[i];
    FOR_EACH_AGENT(first, 1) {
        real total = 0;
        for (int i = 0; i < AGENTS; ++i) total += w.size[i];
        metrics.last    = w.x[AGENTS - 1];
        metrics.mean    = total;
        metrics.sum     = real(w.out);
        metrics.highest = w.x[0];
    }
}
