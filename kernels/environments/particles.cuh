// Discs in a plane that drive, push one another and run into what stands still: what the Multi Particle Environments
// (Lowe et al. 2017, arXiv 1706.02275; Mordatch & Abbeel 2017, arXiv 1703.04908) have in common. Any team's rules may
// use it, as `particles::move`, `particles::see_others` and so on.
//
// A World's state has x, y, x_dot and y_dot of agents, and landmark_x and landmark_y, arrays, of its replica; its scratch
// next_x and next_y of agents. Parameters are time_step and damping, and where discs touch contact_force and
// contact_margin.

namespace particles {

constexpr int MOVES = 5;  // of an action: none, left, right, down, up

struct Vector {
    real x, y;
};

// What of an agent or a landmark matters to others and to itself. Without a limit `fastest` is infinite.
struct Disc {
    real size, drive, fastest;
};

// Agents lie anywhere between -1 and 1, `landmarks` within `reach`, and nothing moves.
template <class W> FN void scatter(W& w, Team& team, int landmarks, real reach = 1) {
    FOR_EACH_AGENT(k, AGENTS + landmarks) {
        Random random = team.random(RESET, k);
        if (k < AGENTS) {
            w.x[k]     = random.uniform(-1, 1);
            w.y[k]     = random.uniform(-1, 1);
            w.x_dot[k] = w.y_dot[k] = 0;
        } else {
            w.landmark_x[k - AGENTS] = random.uniform(-reach, reach);
            w.landmark_y[k - AGENTS] = random.uniform(-reach, reach);
        }
    }
}

// One of n things for an episode; `draw` tells several of them apart.
FN int chosen(const Team& team, int n, int draw = 0) {
    Random random = team.random(RESET, AGENTS + draw);
    return random.integer(n);
}

// How strongly an action of real numbers has its element j, which is clipped.
template <class A> FN float strength(const A& action, int j) { return clip(float(action[j]), 0.0f, 1.0f); }

// Where an action drives to.
template <class A> FN Vector driven(const A& action) {
    if constexpr (INTEGER_ACTIONS) {
        const int move = action % MOVES;
        return {real((move == 2) - (move == 1)), real((move == 4) - (move == 3))};
    } else {
        return {real(strength(action, 2) - strength(action, 1)), real(strength(action, 4) - strength(action, 3))};
    }
}

// What agent i says by an action: the word behind its moves, if it has any, or how strongly it says each word.
template <class W, class A> FN void say(W& w, int i, const A& action, int words, bool moves) {
    for (int word = 0; word < words; ++word) {
        if constexpr (INTEGER_ACTIONS) w.c(i, word) = (moves ? action / MOVES : +action) == word;
        else w.c(i, word) = strength(action, (moves ? MOVES : 0) + word);
    }
}

// The velocity of agent i after a step with this force on it.
template <class W, class P> FN void accelerate(W& w, const P& p, int i, const Vector& force, real fastest) {
    const real x = w.x_dot[i] * (1 - p.damping) + force.x * p.time_step;
    const real y = w.y_dot[i] * (1 - p.damping) + force.y * p.time_step;
    const real speed = square_root(x * x + y * y), scale = speed > fastest ? fastest / speed : real(1);
    w.x_dot[i] = x * scale;
    w.y_dot[i] = y * scale;
}

// Moves agent i, who touches nobody.
template <class W, class P, class A> FN void drift(W& w, const P& p, int i, const A& action, real drive) {
    const Vector way = driven(action);
    w.x[i] += w.x_dot[i] * p.time_step;
    w.y[i] += w.y_dot[i] * p.time_step;
    accelerate(w, p, i, {way.x * drive, way.y * drive}, infinity<real>());
}

// How deep discs are in one another, softly from some margins before they touch. A function of its own, so that pairs
// far from that neither wait for others' exponentials nor have a compiler compute theirs.
NOINLINE real softened(real depth, real margin) {
    const real margins = depth / margin;
    return margin * (log(1 + exp(margins > 0 ? -margins : margins)) + (margins > 0 ? margins : real(0)));
}

// Adds the push from a disc to one that is `way` from it, where both sizes sum up to `sizes`.
template <class P> FN void push(const P& p, const Vector& way, real sizes, Vector& force) {
    constexpr real margins = sizeof(real) == 4 ? 17 : 40;  // so many away the exponential is below the last digit
    const real edge   = margins * p.contact_margin;
    const real square = way.x * way.x + way.y * way.y, reach = sizes + edge;
    if (square > reach * reach || square == 0) return;
    const real distance = square_root(square), depth = sizes - distance;
    const real scale    = p.contact_force * (depth < edge ? softened(depth, p.contact_margin) : depth) / distance;
    force.x += way.x * scale;
    force.y += way.y * scale;
}

// All agents drive, are pushed by one another and by the first `obstacles` landmarks, and move: two phases. `disc(p, k)`
// is agent k, or from AGENTS up a landmark.
template <class W, class P, class D>
FN void move(W& w, const P& p, Team& team, const TeamActions& actions, int obstacles, const D& disc) {
    FOR_EACH_AGENT(i, AGENTS) {
        const Disc   own = disc(p, i);
        const Vector way = driven(actions[i]);
        const real   x = w.x[i], y = w.y[i];
        Vector force{way.x * own.drive, way.y * own.drive};
        for (int j = 0; j < AGENTS; ++j) {
            if (j != i) push(p, {x - w.x[j], y - w.y[j]}, own.size + disc(p, j).size, force);
        }
        for (int k = 0; k < obstacles; ++k) {
            push(p, {x - w.landmark_x[k], y - w.landmark_y[k]}, own.size + disc(p, AGENTS + k).size, force);
        }
        w.next_x[i] = x + w.x_dot[i] * p.time_step;
        w.next_y[i] = y + w.y_dot[i] * p.time_step;
        accelerate(w, p, i, force, own.fastest);
    }
    FOR_EACH_AGENT(i, AGENTS) {
        w.x[i] = w.next_x[i];
        w.y[i] = w.next_y[i];
    }
}

// Squared distances of agents i and j, and of agent i and landmark k; and whether discs so far apart touch.
template <class W> FN real squared_apart(const W& w, int i, int j) { return squared_distance(w.x[i], w.y[i], w.x[j], w.y[j]); }
template <class W> FN real squared_from(const W& w, int i, int k) {
    return squared_distance(w.x[i], w.y[i], w.landmark_x[k], w.landmark_y[k]);
}
FN bool touch(real square, real sizes) { return square < sizes * sizes; }

// The price of a coordinate: nothing well inside the square, 1 at its edge, and more and more beyond, up to 10.
FN real price_outside(real coordinate) {
    const real out = coordinate < 0 ? -coordinate : coordinate;
    if (out < real(0.9)) return 0;
    return out < 1 ? (out - real(0.9)) * 10 : minimum(exp(2 * out - 2), real(10));
}
template <class W> FN real price_outside(const W& w, int i) { return price_outside(w.x[i]) + price_outside(w.y[i]); }

// Number j of all but agent i.
FN int other(int i, int j) { return j < i ? j : j + 1; }

// Calls put(0, j), put(1, j) and so on for `wanted` of n points, from the nearest to (x, y) on, without point `self`;
// and put(k, -1) where there are no more.
template <class Xs, class Put>
FN void by_distance(const Xs& xs, const Xs& ys, int n, int self, real x, real y, int wanted, const Put& put) {
    Near last{-1, -1};
    for (int k = 0; k < wanted; ++k) {
        Near next{infinity<real>(), -1};
        for (int j = 0; j < n; ++j) {
            const Near point{squared_distance(xs[j], ys[j], x, y), j};
            if (j != self && nearer(last, point) && nearer(point, next)) next = point;
        }
        put(k, next.number);
        if (next.number >= 0) last = next;
        else last.distance = infinity<real>();
    }
}

// What stands in a row from `at` on; each returns where it goes on.

FN int write(const Row& row, int at, real x, real y) {
    row[at]     = float(x);
    row[at + 1] = float(y);
    return at + 2;
}
template <class W> FN int see_velocity(const W& w, int i, const Row& row, int at) { return write(row, at, w.x_dot[i], w.y_dot[i]); }
template <class W> FN int see_place(const W& w, int i, const Row& row, int at) { return write(row, at, w.x[i], w.y[i]); }
template <class W> FN int see_landmark(const W& w, int i, int k, const Row& row, int at) {
    return write(row, at, w.landmark_x[k] - w.x[i], w.landmark_y[k] - w.y[i]);
}

// The ways to the first n landmarks; with `nearest` above 0 to so many of them, nearest first, and zeros for those that
// are not there.
template <class W> FN int see_landmarks(const W& w, int i, const Row& row, int at, int n, int nearest = 0) {
    if (nearest == 0) {
        FOR_EACH_COLUMN(k, n) see_landmark(w, i, k, row, at + 2 * k);
        return at + 2 * n;
    }
    by_distance(w.landmark_x, w.landmark_y, n, -1, w.x[i], w.y[i], nearest, [&](int k, int landmark) {
        if (landmark < 0) write(row, at + 2 * k, 0, 0);
        else see_landmark(w, i, landmark, row, at + 2 * k);
    });
    return at + 2 * nearest;
}

// The same of the other agents.
template <class W> FN int see_others(const W& w, int i, const Row& row, int at, int nearest = 0) {
    const auto see = [&](int k, int j) {
        if (j < 0) write(row, at + 2 * k, 0, 0);
        else write(row, at + 2 * k, w.x[j] - w.x[i], w.y[j] - w.y[i]);
    };
    if (nearest == 0) {
        FOR_EACH_COLUMN(j, AGENTS - 1) see(j, other(i, j));
        return at + 2 * (AGENTS - 1);
    }
    by_distance(w.x, w.y, AGENTS, i, w.x[i], w.y[i], nearest, see);
    return at + 2 * nearest;
}

// What agent i says.
template <class W> FN int hear(const W& w, int i, const Row& row, int at, int words) {
    for (int word = 0; word < words; ++word) row[at + word] = float(w.c(i, word));
    return at + words;
}

// A colour: `base` all over, and `more` of one of its parts.
FN int see_colour(const Row& row, int at, float base, float more, int part) {
    for (int k = 0; k < 3; ++k) row[at + k] = base + (k == part ? more : 0.0f);
    return at + 3;
}

}  // namespace particles
