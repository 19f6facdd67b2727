// Discs in a plane that accelerate, push one another and collide with landmarks: the common physics and observations of
// the Multi Particle Environments (Lowe et al. 2017, arXiv 1706.02275; Mordatch & Abbeel 2017, arXiv 1703.04908). Rules
// of any team may use it, as `particles::move`, `particles::see_other_agents` and so on.
//
// The World's state needs x, y, x_dot and y_dot per agent, and the shared arrays landmark_x and landmark_y; its scratch
// needs next_x and next_y per agent. Parameters: time_step and damping; for contacts, contact_force and contact_margin.

namespace particles {

constexpr int MOVES = 5;  // of an action: none, left, right, down, up

struct Vector {
    real x, y;
};

// The radius of an agent or a landmark, the force per unit of action, and the maximum speed (infinity: no limit).
struct Disc {
    real size, drive, max_speed;
};

// Draws positions: of agents, at rest, between -1 and 1, of landmarks between -reach and reach.
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

// A random index below n for an episode; different values of `draw` give independent indices.
FN int chosen(const Team& team, int n, int draw = 0) {
    Random random = team.random(RESET, AGENTS + draw);
    return random.integer(n);
}

// Element j of a Box action, clipped to [0, 1].
template <class A> FN float strength(const A& action, int j) { return clip(float(action[j]), 0.0f, 1.0f); }

// The direction of an action's force: of a discrete move, or of a Box action's elements 1 to 4.
template <class A> FN Vector direction_of(const A& action) {
    if constexpr (INTEGER_ACTIONS) {
        const int move = action % MOVES;
        return {real((move == 2) - (move == 1)), real((move == 4) - (move == 3))};
    } else {
        return {real(strength(action, 2) - strength(action, 1)), real(strength(action, 4) - strength(action, 3))};
    }
}

// Sets agent i's message w.c from its action, which also has a move if `moves`: a one-hot word, or a strength per word.
template <class W, class A> FN void say(W& w, int i, const A& action, int words, bool moves) {
    for (int word = 0; word < words; ++word) {
        if constexpr (INTEGER_ACTIONS) w.c(i, word) = (moves ? action / MOVES : +action) == word;
        else w.c(i, word) = strength(action, (moves ? MOVES : 0) + word);
    }
}

// Updates the velocity of agent i by damping and the force on it, up to max_speed; not its position.
template <class W, class P> FN void accelerate(W& w, const P& p, int i, const Vector& force, real max_speed) {
    const real x = w.x_dot[i] * (1 - p.damping) + force.x * p.time_step;
    const real y = w.y_dot[i] * (1 - p.damping) + force.y * p.time_step;
    const real speed = square_root(x * x + y * y), scale = speed > max_speed ? max_speed / speed : real(1);
    w.x_dot[i] = x * scale;
    w.y_dot[i] = y * scale;
}

// Moves agent i without collisions, and accelerates it by its action.
template <class W, class P, class A> FN void drift(W& w, const P& p, int i, const A& action, real drive) {
    const Vector direction = direction_of(action);
    w.x[i] += w.x_dot[i] * p.time_step;
    w.y[i] += w.y_dot[i] * p.time_step;
    accelerate(w, p, i, {direction.x * drive, direction.y * drive}, infinity<real>());
}

// The penetration depth of two discs, smoothed by softplus around their contact. Not inlined: distant pairs skip exp().
NOINLINE real softened(real depth, real margin) {
    const real margins = depth / margin;
    return margin * (log(1 + exp(margins > 0 ? -margins : margins)) + (margins > 0 ? margins : real(0)));
}

// Adds another disc's contact force to `force`; `offset`: the vector from that disc; `sizes`: the sum of the radii.
template <class P> FN void push(const P& p, const Vector& offset, real sizes, Vector& force) {
    constexpr real margins = sizeof(real) == 4 ? 17 : 40;  // beyond, softplus is below rounding errors
    const real edge   = margins * p.contact_margin;
    const real square = offset.x * offset.x + offset.y * offset.y, reach = sizes + edge;
    if (square > reach * reach || square == 0) return;
    const real distance = square_root(square), depth = sizes - distance;
    const real scale    = p.contact_force * (depth < edge ? softened(depth, p.contact_margin) : depth) / distance;
    force.x += offset.x * scale;
    force.y += offset.y * scale;
}

// Moves all agents, with contacts between agents and with the first `obstacles` landmarks, in two phases. `disc(p, k)`
// is the disc of agent k, or of landmark k - AGENTS.
template <class W, class P, class D>
FN void move(W& w, const P& p, Team& team, const TeamActions& actions, int obstacles, const D& disc) {
    FOR_EACH_AGENT(i, AGENTS) {
        const Disc   agent     = disc(p, i);
        const Vector direction = direction_of(actions[i]);
        const real   x = w.x[i], y = w.y[i];
        Vector force{direction.x * agent.drive, direction.y * agent.drive};
        for (int j = 0; j < AGENTS; ++j) {
            if (j != i) push(p, {x - w.x[j], y - w.y[j]}, agent.size + disc(p, j).size, force);
        }
        for (int k = 0; k < obstacles; ++k) {
            push(p, {x - w.landmark_x[k], y - w.landmark_y[k]}, agent.size + disc(p, AGENTS + k).size, force);
        }
        w.next_x[i] = x + w.x_dot[i] * p.time_step;
        w.next_y[i] = y + w.y_dot[i] * p.time_step;
        accelerate(w, p, i, force, agent.max_speed);
    }
    FOR_EACH_AGENT(i, AGENTS) {
        w.x[i] = w.next_x[i];
        w.y[i] = w.next_y[i];
    }
}

// The squared distance of agents i and j, and of agent i and landmark k; whether discs at a squared distance touch.
template <class W> FN real squared_apart(const W& w, int i, int j) {
    return squared_distance(w.x[i], w.y[i], w.x[j], w.y[j]);
}
template <class W> FN real squared_from(const W& w, int i, int k) {
    return squared_distance(w.x[i], w.y[i], w.landmark_x[k], w.landmark_y[k]);
}
FN bool touch(real square, real sizes) { return square < sizes * sizes; }

// The penalty for a coordinate: 0 below 0.9, 1 at the square's edge, growing beyond up to 10.
FN real price_outside(real coordinate) {
    const real out = coordinate < 0 ? -coordinate : coordinate;
    if (out < real(0.9)) return 0;
    return out < 1 ? (out - real(0.9)) * 10 : minimum(exp(2 * out - 2), real(10));
}
template <class W> FN real price_outside(const W& w, int i) { return price_outside(w.x[i]) + price_outside(w.y[i]); }

// The j-th of all agents except agent i.
FN int other(int i, int j) { return j < i ? j : j + 1; }

// Calls put(0, j), put(1, j) and so on for the `count` nearest of n points to (x, y), without point `self`, nearest
// first; and put(k, -1) if there are not as many.
template <class Xs, class Put>
FN void by_distance(const Xs& xs, const Xs& ys, int n, int self, real x, real y, int count, const Put& put) {
    Near last{-1, -1};
    for (int k = 0; k < count; ++k) {
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

// The functions below write features of or for agent i into a row from column `at` on, and return the next column.

// Writes x and y to columns `at` and `at` + 1.
FN int write(const Row& row, int at, real x, real y) {
    row[at]     = float(x);
    row[at + 1] = float(y);
    return at + 2;
}
template <class W> FN int see_velocity(const W& w, int i, const Row& row, int at) {
    return write(row, at, w.x_dot[i], w.y_dot[i]);
}
template <class W> FN int see_place(const W& w, int i, const Row& row, int at) { return write(row, at, w.x[i], w.y[i]); }
template <class W> FN int see_landmark(const W& w, int i, int k, const Row& row, int at) {
    return write(row, at, w.landmark_x[k] - w.x[i], w.landmark_y[k] - w.y[i]);
}

// Writes n landmarks' relative positions; with `nearest` > 0, of the `nearest` nearest, zeros for missing ones.
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

// Writes the other agents' relative positions; with `nearest` > 0, of the `nearest` nearest, zeros for missing ones.
template <class W> FN int see_other_agents(const W& w, int i, const Row& row, int at, int nearest = 0) {
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

// The message of agent i.
template <class W> FN int hear(const W& w, int i, const Row& row, int at, int words) {
    for (int word = 0; word < words; ++word) row[at + word] = float(w.c(i, word));
    return at + words;
}

// A colour of three columns: `base`, plus `more` in column `part`.
FN int see_colour(const Row& row, int at, float base, float more, int part) {
    for (int k = 0; k < 3; ++k) row[at + k] = base + (k == part ? more : 0.0f);
    return at + 3;
}

}  // namespace particles
