// Crane: stack crates on the lorry, which stands under the last column of the yard. A step moves the trolley, lowers the
// hook to a height, and there has its magnet on or off.

constexpr int COLUMNS = 5, CRATES = 4;  // as `stack` is long

constexpr int MOVES = 3, SWITCHES = 2, HEIGHTS = 5;  // the choices of an action's elements
constexpr int OFF = MOVES, LOWEST = MOVES + SWITCHES;  // in the mask: the magnet is off; the lowest height

FN int highest(const State& s) {
    int found = 0;
    for (int k = 0; k < COLUMNS; ++k) found = s.stack[k] > found ? s.stack[k] : found;
    return found;
}

FN void reset(State& s, const Params& p, Random& random) {
    s.x     = random.integer(COLUMNS);
    s.laden = false;
    for (int k = 0; k < COLUMNS; ++k) s.stack[k] = 0;
    for (int n = 0; n < CRATES; ++n) s.stack[random.integer(COLUMNS - 1)] += 1;
}

FN Outcome step(State& s, const Params& p, const Action& action, Random&) {
    const int move = action[0], height = action[2];
    const bool on = action[1] == 1;
    s.x = clip(s.x + move, 0, COLUMNS - 1);
    const int under = s.stack[s.x];
    real reward = -p.step_cost;
    bool broken = s.laden && height < under;  // the load hits the crates
    if (!s.laden && on && height == under - 1) {
        s.stack[s.x] = u8(under - 1);
        s.laden      = true;
        reward += s.x == COLUMNS - 1 ? -p.prize : p.prize;
    } else if (s.laden && !on && !broken) {
        broken       = height > under;  // it falls
        s.stack[s.x] = u8(under + 1);
        s.laden      = false;
        reward += s.x == COLUMNS - 1 ? p.prize : -p.prize;
    }
    return {broken ? -p.prize : reward, broken || s.stack[COLUMNS - 1] == CRATES};
}

FN void observe(const State& s, const Params& p, Observation& observation) {
    for (int k = 0; k < COLUMNS; ++k) {
        observation[k]           = s.x == k ? 1.0f : 0.0f;
        observation[COLUMNS + k] = float(s.stack[k]) / float(CRATES);
    }
    observation[2 * COLUMNS] = s.laden ? 1.0f : 0.0f;
}

// Against the ends of the yard, over nothing with a load at the first column, and above all crates there is nothing to do.
FN void allow(const State& s, const Params& p, Mask& mask) {
    mask[0]   = s.x > 0;
    mask[2]   = s.x < COLUMNS - 1;
    mask[OFF] = !(s.laden && s.x == 0);
    for (int height = 0; height < HEIGHTS; ++height) mask[LOWEST + height] = height <= highest(s);
}
