// Courier: fetch parcels from the shelves of a warehouse, one at a time, and bring them to its door, around walls.

constexpr int PARCELS = 2;  // as long as `status` and `shelf` are

constexpr u8 WAITING = 0, CARRIED = 1, DELIVERED = 2;

constexpr int MOVES = 4, PICK = 4, DROP = 5;  // the moves come first: +x, +y, -x, -y

FN bool is_free(const Params& p, int x, int y) {
    const bool inside = x >= 0 && x < p.walls.size(1) && y >= 0 && y < p.walls.size(0);
    return inside && !p.walls(inside ? y : 0, inside ? x : 0);
}

FN int step_x(int move) { return (move == 0) - (move == 2); }
FN int step_y(int move) { return (move == 1) - (move == 3); }

// The parcel that waits where the courier stands; -1: none.
FN int parcel_here(const State& s, const Params& p) {
    int found = -1;
    for (int k = 0; k < PARCELS; ++k) {
        const int shelf = s.shelf[k];
        if (s.status[k] == WAITING && p.shelves(shelf, 0) == s.x && p.shelves(shelf, 1) == s.y) found = k;
    }
    return found;
}

FN bool at_door(const State& s, const Params& p) { return s.x == p.door[0] && s.y == p.door[1]; }

FN void reset(State& s, const Params& p, Random& random) {
    const int place = random.integer(p.floor.size(0));
    s.x     = p.floor(place, 0);
    s.y     = p.floor(place, 1);
    s.laden = false;
    for (int k = 0; k < PARCELS; ++k) {
        s.shelf[k]  = random.integer(p.shelves.size(0));
        s.status[k] = WAITING;
    }
}

FN Outcome step(State& s, const Params& p, const Action& action, Random&) {
    real reward = -p.step_cost;
    if (action < MOVES) {
        const int x = s.x + step_x(action), y = s.y + step_y(action);
        if (is_free(p, x, y)) {
            s.x = x;
            s.y = y;
        }
    } else if (action == PICK) {
        const int k = parcel_here(s, p);
        if (k >= 0 && !s.laden) {
            s.status[k] = CARRIED;
            s.laden     = true;
            reward += p.pick_reward;
        }
    } else if (s.laden && at_door(s, p)) {
        for (int k = 0; k < PARCELS; ++k) {
            if (s.status[k] == CARRIED) s.status[k] = DELIVERED;
        }
        s.laden = false;
        reward += p.delivery_reward;
    }
    bool done = true;
    for (int k = 0; k < PARCELS; ++k) done = done && s.status[k] == DELIVERED;
    return {reward, done};
}

FN void observe(const State& s, const Params& p, Observation& observation) {
    const float scale = 1.0f / float(p.walls.size(1));
    observation[0] = float(s.x) * scale;
    observation[1] = float(s.y) * scale;
    observation[2] = s.laden ? 1.0f : 0.0f;
    observation[3] = float(p.door[0] - s.x) * scale;
    observation[4] = float(p.door[1] - s.y) * scale;
    for (int move = 0; move < MOVES; ++move) {
        observation[5 + move] = is_free(p, s.x + step_x(move), s.y + step_y(move)) ? 1.0f : 0.0f;
    }
    for (int k = 0; k < PARCELS; ++k) {
        const bool waiting = s.status[k] == WAITING;
        observation[9 + 3 * k]  = waiting ? 1.0f : 0.0f;
        observation[10 + 3 * k] = waiting ? float(p.shelves(s.shelf[k], 0) - s.x) * scale : 0.0f;
        observation[11 + 3 * k] = waiting ? float(p.shelves(s.shelf[k], 1) - s.y) * scale : 0.0f;
    }
}

FN void allow(const State& s, const Params& p, Mask& mask) {
    for (int move = 0; move < MOVES; ++move) mask[move] = is_free(p, s.x + step_x(move), s.y + step_y(move));
    mask[PICK] = !s.laden && parcel_here(s, p) >= 0;
    mask[DROP] = s.laden && at_door(s, p);
}
