// A crew holds its boat's position in a changing current. Each rower rows backward, rests, or rows forward, and tires.
//
// my_env.py defines the fields of World: w.tired[i] of rower i, w.x of the boat. Code for every agent is a
// FOR_EACH_AGENT loop. On a GPU its iterations run in parallel: iteration i writes fields of agent i only, and reads what
// earlier loops wrote. One iteration writes shared fields: if (i == 0).

// Start an episode: set every field.
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

// Take one step: update the state, set the reward of each agent and whether the episode terminates.
FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) {
        if (i == 0) w.pull = 0;
    }
    FOR_EACH_AGENT(i, AGENTS) {
        const int stroke = actions[i] - 1;  // an action is 0, 1 or 2
        w.tired[i] = clip(w.tired[i] + (stroke == 0 ? -p.rest : p.effort), real(0), real(1));
        add(w.pull, stroke);  // atomic: all iterations may add to an integer
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

// Compute values that several observations need: none here.
FN void look(World&, const Params&, Team&) {}

// Write the observation of agent i: one number for each element of its observation space.
FN void observe(const World& w, const Params& p, int i, const Row& row) {
    row[0] = float(w.x / p.reach);
    row[1] = float(w.speed);
    row[2] = float(w.current);
    row[3] = float(w.tired[i]);
}
