// Carriers fetch goods along a path of cells that a table defines; diggers add goods to it. For tests: arrays of every
// kind of field, of agents and of the replica, and action masks that depend on an agent's cell.

constexpr int FIRST_CHOICE = 10;  // carriers' choices: stay, back, forward, pick up, put down
constexpr int HOLDS        = 3;   // capacity of a carrier
constexpr int MOST_GOODS   = 4;   // maximum number of goods in a cell to which diggers may add
constexpr int BACK = 0, ON = 1, PIT = 2;  // columns of p.path

FN bool carries(const World& w, int i) {
    bool any = false;
    for (int k = 0; k < HOLDS; ++k) any |= w.cargo[i * HOLDS + k] != 0;
    return any;
}
FN bool has_room(const World& w, int i) {
    bool any = false;
    for (int k = 0; k < HOLDS; ++k) any |= w.cargo[i * HOLDS + k] == 0;
    return any;
}

FN void reset(World& w, const Params& p, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) {
        Random    random = team.random(RESET, i);
        const int place  = random.integer(CELLS);
        w.place[i] = p.path(place, PIT) != 0 ? 0 : place;
        for (int k = 0; k < HOLDS; ++k) w.cargo[i * HOLDS + k] = 0;
        for (int k = 0; k < 2; ++k) {
            w.paid[i * 2 + k] = 0;
            w.met[i * 2 + k]  = -1;
        }
        for (int k = 0; k < CELLS; ++k) w.visited[i * CELLS + k] = k == w.place[i];
        for (int k = i; k < CELLS; k += AGENTS) w.board[k] = random.integer(3);
        for (int k = i; k < LINES; k += AGENTS) w.ledger[k] = AgentNumber(-1);
        if (i == 0) {
            w.delivered[0] = 0;
            w.dearest      = 0;
        }
    }
}

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) {
        const bool carrier = role_of(i) == CARRIER;
        const int  choice  = actions[i][0] - (carrier ? FIRST_CHOICE : 0);
        const int  next    = choice == 1 ? p.path(w.place[i], BACK) : choice == 2 ? p.path(w.place[i], ON) : w.place[i];
        w.wanted[i] = carrier ? choice : actions[i][1] != 0 ? 5 : 0;
        if (w.present[i]) {
            w.place[i] = next < 0 ? w.place[i] : next;
            w.visited[i * CELLS + w.place[i]] = true;
        }
        for (int k = i; k < CELLS; k += AGENTS) w.lowest[k] = AGENTS;
        if (i == 0) w.left = 0;
    }
    // the lowest agent in each cell; and the agents that get its goods, if more agents want some than there are
    FOR_EACH_AGENT(i, AGENTS) {
        int before = 0;
        for (int j = 0; j < i; ++j) before += w.present[j] && w.wanted[j] == 3 && w.place[j] == w.place[i] ? 1 : 0;
        w.granted[i] = w.present[i] && w.wanted[i] == 3 && has_room(w, i) && before < w.board[w.place[i]];
        if (w.present[i]) lower(w.lowest[w.place[i]], i);
    }
    FOR_EACH_AGENT(i, AGENTS) {
        if (!w.present[i]) continue;
        const int cell  = w.place[i];
        int       given = 0;
        if (w.granted[i]) {
            int slot = 0;
            while (w.cargo[i * HOLDS + slot] != 0) ++slot;
            w.cargo[i * HOLDS + slot] = u8(cell % 255 + 1);
            add(w.board[cell], -1);
        }
        if (w.wanted[i] == 4) {
            for (int k = 0; k < HOLDS; ++k) {
                given += w.cargo[i * HOLDS + k] != 0 ? 1 : 0;
                w.cargo[i * HOLDS + k] = 0;
            }
            add(cell == 0 ? w.delivered[0] : w.board[cell], given);
        }
        if (w.wanted[i] == 5) add(w.board[cell], 1);
        w.met[i * 2 + 1]   = w.met[i * 2];
        w.met[i * 2]       = AgentNumber(w.lowest[cell]);
        const real toll    = p.tolls[cell];
        w.paid[i * 2 + 1]  = w.paid[i * 2];
        w.paid[i * 2]     += toll;
        w.reward[i]        = real(cell == 0 ? given : 0) - toll * p.toll_rate;
        if (p.path(cell, PIT) != 0) w.in_game[i] = false;
        else add(w.left, 1);
    }
    FOR_EACH_AGENT(i, AGENTS) {
        for (int k = i; k < CELLS; k += AGENTS)
            if (w.lowest[k] < AGENTS) w.ledger[(w.elapsed + k) % LINES] = AgentNumber(w.lowest[k]);
        if (i == 0) {
            w.dearest    = maximum(w.dearest, w.paid[0]);
            w.terminated = w.delivered[0] >= p.goal || w.left == 0;
        }
    }
}

FN void look(World& w, const Params&, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) {
        if (i == 0) w.goods = 0;
    }
    FOR_EACH_AGENT(i, AGENTS) {
        for (int k = i; k < CELLS; k += AGENTS) add(w.goods, w.board[k]);
    }
}

FN void allow(const World& w, const Params& p, int i, const Mask& mask) {
    const int cell = w.place[i];
    mask[1] = p.path(cell, BACK) >= 0;
    mask[2] = p.path(cell, ON) >= 0;
    if (role_of(i) == CARRIER) {
        mask[3] = w.board[cell] > 0 && has_room(w, i);
        if (!carries(w, i)) mask[4] = false;
    } else {
        mask[4] = w.board[cell] < MOST_GOODS;  // three moves, then whether to dig
    }
}

FN void observe(const World& w, const Params&, int i, const Row& row) {
    row[0] = float(w.place[i]);
    row[1] = float(w.goods);
    int at = 2;
    if (role_of(i) == CARRIER) {
        for (int k = 0; k < HOLDS; ++k) row[at++] = float(w.cargo[i * HOLDS + k]);
    }
    FOR_EACH_COLUMN(j, CELLS) row[at + j] = float(w.board[j]) + (w.visited[i * CELLS + j] ? 0.5f : 0.0f);
}
