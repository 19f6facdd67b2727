// A crew keeps its boat in its place, in a current that comes and goes: each rower backs, rests, or rows on, and tires.
//
// World has the fields that my_env.py names: w.tired[i] of a rower, w.x of the boat. What is done for every agent stands
// in a phase, FOR_EACH_AGENT: on a GPU its turns run at the same time, so a turn writes what is its own agent's, and
// reads what earlier phases wrote. What there is once is written by one turn: if (i == 0).

// The beginning of an episode: gives every field its first value.
FN void reset(World& w, const Params& p, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) {
        w.tired[i] = real(0);
        if (i == 0) {
            Random random = team.random(RESET, i);
            w.x       = random.uniform(-p.start, p.start);
            w.speed   = real(0);
            w.current = random.uniform(-p.strongest, p.strongest);
        }
    }
}

// One step: changes the state, gives each agent its reward, and says whether the episode has come to its end.
FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) {
        if (i == 0) w.pull = 0;
    }
    FOR_EACH_AGENT(i, AGENTS) {
        const int stroke = actions[i] - 1;  // an action is 0, 1 or 2
        w.tired[i] = clip(w.tired[i] + (stroke == 0 ? -p.rest : p.effort), real(0), real(1));
        add(w.pull, stroke);  // every turn may add to a whole number
    }
    FOR_EACH_AGENT(i, AGENTS) {
        if (i == 0) {
            Random random = team.random(STEP, i, w.elapsed);
            const real push = p.push * real(w.pull) / real(AGENTS);
            w.current = clip(w.current + random.uniform(-p.gust, p.gust), -p.strongest, p.strongest);
            w.speed  += p.tau * (push - p.drag * (w.speed - w.current));
            w.x      += p.tau * w.speed;
            w.terminated = w.x < -p.reach || w.x > p.reach;
        }
    }
    FOR_EACH_AGENT(i, AGENTS) {
        w.reward[i] = w.terminated ? real(0) : real(1) - p.weariness * w.tired[i];
    }
}

// What must be known before anybody can see something: of this world, nothing.
FN void look(World&, const Params&, Team&) {}

// What agent i sees: as many numbers as its observation space has.
FN void observe(const World& w, const Params& p, int i, const Row& row) {
    row[0] = float(w.x / p.reach);
    row[1] = float(w.speed);
    row[2] = float(w.current);
    row[3] = float(w.tired[i]);
}
