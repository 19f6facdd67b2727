// Digger: walk through a mine, empty its cells into a bag, and leave before the fuel is spent. Integers, bools,
// arrays and tables; digger.py adds several kinds of observations.

constexpr int CELLS = 20, MOVES = 4, DIG = 4, LEAVE = 5;  // the moves come first: +row, +column, -row, -column

FN int  cell_of(const State& s, const Params& p) { return s.row * p.rock.size(1) + s.column; }
FN int  row_step(int move) { return (move == 0) - (move == 2); }
FN int  column_step(int move) { return (move == 1) - (move == 3); }
FN bool is_open(const Params& p, int row, int column) {
    const bool inside = row >= 0 && row < p.rock.size(0) && column >= 0 && column < p.rock.size(1);
    return inside && !p.rock(inside ? row : 0, inside ? column : 0);
}

FN void reset(State& s, const Params& p, Random& random) {
    s.row    = 0;
    s.column = random.integer(p.rock.size(1));
    s.lamp   = random.integer(2) == 1;
    s.noise  = random.integer(64);
    s.fuel   = random.uniform(p.tank / 2, p.tank);
    for (int k = 0; k < CELLS; ++k) s.dug[k] = u8(s.noise % (k + 2) == 0);
    for (int k = 0; k < 3; ++k) s.bag[k] = 0;
}

FN Outcome step(State& s, const Params& p, const Action& action, Random&) {
    real reward = 0;
    s.noise = (s.noise * 5 + 3) % 64;
    s.lamp  = s.lamp != (s.noise % 7 == 0);
    s.fuel -= s.lamp ? p.burn : p.burn / 2;
    if (action < MOVES) {
        const int row = s.row + row_step(action), column = s.column + column_step(action);
        if (is_open(p, row, column)) {
            s.row    = row;
            s.column = column;
        }
    } else if (action == DIG && !s.dug[cell_of(s, p)]) {
        const int ore = p.ore[cell_of(s, p)];
        s.dug[cell_of(s, p)] = 1;
        s.bag[ore] += 1 + s.noise % 3;
        reward = real(ore) / 2;
    }
    return {reward, (action == LEAVE && s.row == 0) || s.fuel <= 0};
}

FN void paint(const State& s, const Params& p, Elements<u8> image) {
    for (int row = 0; row < p.rock.size(0); ++row) {
        for (int column = 0; column < p.rock.size(1); ++column) {
            const int cell = row * p.rock.size(1) + column;
            image[3 * cell]     = p.rock(row, column) ? 255 : u8(100 * s.dug[cell]);
            image[3 * cell + 1] = row == s.row && column == s.column ? 200 : 0;
            image[3 * cell + 2] = u8(s.noise);
        }
    }
}
