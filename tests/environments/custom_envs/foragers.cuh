// Foragers: some pick what grows on a field, others sow it. A forager whose basket is full goes home.

constexpr int CELLS = SIDE * SIDE;

constexpr int MOVES = 4, ACT = 5;  // stay, +x, +y, -x, -y, and the role's own actions: pick, or sow a kind

FN int cell_of(const World& w, int i) { return w.y[i] * SIDE + w.x[i]; }

FN int carried(const World& w, int i) {
    int sum = 0;
    for (int kind = 0; kind < KINDS; ++kind) sum += w.cargo[i * KINDS + kind];
    return sum;
}

FN void reset(World& w, const Params& p, Team& team) {
    FOR_EACH_AGENT(cell, CELLS) {
        Random random = team.random(RESET, AGENTS + cell);  // agents use the indices below
        const bool grows = random.uniform(0, 1) < p.density;
        w.board[cell]    = u8(grows ? 1 + random.integer(KINDS) : 0);
        if (cell == 0) {
            w.growing   = 0;
            w.seeds     = count_of(SOWER) * KINDS * p.seeds_of_a_kind;
            w.harvest   = 0;
        }
    }
    FOR_EACH_AGENT(cell, CELLS) {
        if (w.board[cell] != 0) add(w.growing, 1);
    }
    FOR_EACH_AGENT(i, AGENTS) {
        Random random = team.random(RESET, i);
        w.x[i] = random.integer(SIDE);
        w.y[i] = random.integer(SIDE);
        for (int kind = 0; kind < KINDS; ++kind) w.cargo[i * KINDS + kind] = role_of(i) == SOWER ? p.seeds_of_a_kind : 0;
    }
}

// Whether agent i can pick or sow in its cell.
FN bool can_pick(const World& w, const Params& p, int i) { return w.board[cell_of(w, i)] != 0 && carried(w, i) < p.basket; }
FN bool can_sow(const World& w, int i, int kind) { return w.board[cell_of(w, i)] == 0 && w.cargo[i * KINDS + kind] > 0; }

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(cell, CELLS) {
        w.first[cell] = AGENTS;
        if (cell == 0) w.picked = 0;
    }
    FOR_EACH_AGENT(i, AGENTS) {
        if (!w.in_game[i]) continue;
        const int action = actions[i];
        w.x[i] = clip(w.x[i] + (action == 1) - (action == 3), 0, SIDE - 1);
        w.y[i] = clip(w.y[i] + (action == 2) - (action == 4), 0, SIDE - 1);
        const bool acts = action >= ACT && (role_of(i) == SOWER ? can_sow(w, i, action - ACT) : can_pick(w, p, i));
        w.acts[i]   = acts;
        w.reward[i] = -p.step_cost;
        if (acts) lower(w.first[cell_of(w, i)], i);  // the lowest agent in a cell acts
    }
    FOR_EACH_AGENT(i, AGENTS) {
        const int cell = cell_of(w, i);
        if (!w.in_game[i] || !w.acts[i] || w.first[cell] != i) continue;
        if (role_of(i) == SOWER) {
            const int kind = actions[i] - ACT;
            w.board[cell] = u8(1 + kind);
            w.cargo[i * KINDS + kind] -= 1;
            add(w.growing, 1);
            add(w.seeds, -1);
        } else {
            w.cargo[i * KINDS + (w.board[cell] - 1)] += 1;
            w.board[cell] = 0;
            w.reward[i] += p.pick_reward;
            add(w.growing, -1);
            add(w.picked, 1);
            add(w.harvest, 1);
            if (carried(w, i) == p.basket) w.in_game[i] = false;
        }
    }
    FOR_EACH_AGENT(i, AGENTS) {
        if (role_of(i) == SOWER) w.reward[i] += p.share_of_sowers * real(w.picked);
        if (i == 0) w.terminated = w.growing == 0 && w.seeds == 0;
    }
}

// Each agent's nearest plant, the first in a tie; -1: nothing grows.
FN void look(World& w, const Params& p, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) {
        int nearest = -1, least = 0x7fffffff;
        for (int cell = 0; cell < CELLS; ++cell) {
            const int dx = cell % SIDE - w.x[i], dy = cell / SIDE - w.y[i], distance = dx * dx + dy * dy;
            if (w.board[cell] != 0 && distance < least) {
                least   = distance;
                nearest = cell;
            }
        }
        w.nearest[i] = nearest;
    }
}

FN void observe(const World& w, const Params& p, int i, const Row& row) {
    const int nearest = w.nearest[i], here = w.board[cell_of(w, i)];
    row[0] = float(w.x[i]) / float(SIDE);
    row[1] = float(w.y[i]) / float(SIDE);
    row[2] = nearest < 0 ? 0.0f : float(nearest % SIDE - w.x[i]) / float(SIDE);
    row[3] = nearest < 0 ? 0.0f : float(nearest / SIDE - w.y[i]) / float(SIDE);
    row[4] = float(w.growing) / float(CELLS);
    for (int kind = 0; kind < KINDS; ++kind) {
        row[5 + kind]         = here == 1 + kind ? 1.0f : 0.0f;
        row[5 + KINDS + kind] = float(w.cargo[i * KINDS + kind]) / float(CELLS);
    }
}

FN void allow(const World& w, const Params& p, int i, const Mask& mask) {
    mask[1] = w.x[i] < SIDE - 1;
    mask[2] = w.y[i] < SIDE - 1;
    mask[3] = w.x[i] > 0;
    mask[4] = w.y[i] > 0;
    if (role_of(i) == SOWER) {
        for (int kind = 0; kind < KINDS; ++kind) mask[ACT + kind] = can_sow(w, i, kind);
    } else {
        mask[ACT] = can_pick(w, p, i);
    }
}
