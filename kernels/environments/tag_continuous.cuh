// Tag in a square: taggers chase runners; all agents accelerate and turn. The game of WarpDrive's TagContinuous (Lan,
// Srinivasa, Wang & Zheng 2022, JMLR 23), but with observations after tags, and separate terminations and truncations.

constexpr real TURN = real(2 * PI);

FN bool is_tagger(int i) { return i < NUM_TAGGERS; }

FN void reset(World& w, const Params& p, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) {
        Random random     = p.start == Start::fixed ? team.shared_random(RESET, i) : team.random(RESET, i);
        w.x[i]            = random.uniform(0, p.grid_length);
        w.y[i]            = random.uniform(0, p.grid_length);
        w.heading[i]      = real(random.integer(4)) * real(PI / 2);
        w.speed[i]        = 0;
        w.acceleration[i] = 0;
        if (i == 0) w.runners_left = NUM_RUNNERS;
    }
}

// The value of a discrete level: 0 for level 0, and evenly spaced from `low` to `high` for levels 1 to n.
FN real level_value(int level, real low, real high, int n) {
    const real step = n > 1 ? quotient(high - low, real(n - 1), real(1) / real(n - 1)) : real(0);
    return level == 0 ? real(0) : low + real(level - 1) * step;
}

FN real wrapped(real angle) {
    const real inside = angle - TURN * round_down(quotient(angle, TURN, real(1) / TURN));
    return inside < 0 || inside >= TURN ? real(0) : inside;  // possible only by rounding
}

// Moves agent i by its action, acceleration and turn; its reward is that for a step and for hitting an edge.
FN void move(World& w, const Params& p, int i, const Action& action) {
    const bool levels = ACTIONS == Actions::discrete;
    const real low    = p.min_acceleration, high = p.max_acceleration;
    const real change = levels ? level_value(int(action[0]), low, high, NUM_ACCELERATION_LEVELS)
                               : clip(real(action[0]), low, high);
    const real turn   = levels ? level_value(int(action[1]), p.min_turn, p.max_turn, NUM_TURN_LEVELS)
                               : clip(real(action[1]), p.min_turn, p.max_turn);

    const real max_speed    = p.max_speed * (is_tagger(i) ? p.skill_level_tagger : p.skill_level_runner);
    const real acceleration = w.acceleration[i] + change;
    const real heading      = wrapped(w.heading[i] + turn);
    const real speed        = clip(w.speed[i] + acceleration, real(0), max_speed);
    const auto [sine, cosine] = sincos(heading);
    const real x = w.x[i] + speed * cosine, y = w.y[i] + speed * sine;
    const bool hit = x < 0 || x > p.grid_length || y < 0 || y > p.grid_length;

    w.acceleration[i] = speed <= 0 || speed >= max_speed ? real(0) : acceleration;
    w.heading[i]      = heading;
    w.speed[i]        = speed;
    w.x[i]            = clip(x, real(0), p.grid_length);
    w.y[i]            = clip(y, real(0), p.grid_length);
    w.reward[i]       = (hit ? p.edge_hit_penalty : real(0))
                      + (is_tagger(i) ? p.step_penalty_for_tagger : p.step_reward_for_runner);
}

// Tags the runner if its nearest tagger is near enough; of equally near ones, the tagger with the lowest number counts.
FN void tag(World& w, const Params& p, int runner) {
    const real margin = p.tagging_distance * p.grid_length;
    Near nearest{infinity<real>(), 0};
    for (int tagger = 0; tagger < NUM_TAGGERS; ++tagger) {
        const real distance = squared_distance(w.x[tagger], w.y[tagger], w.x[runner], w.y[runner]);
        if (distance < nearest.distance) nearest = {distance, tagger};
    }
    if (!(nearest.distance < margin * margin)) return;
    w.reward[runner] += p.tag_penalty_for_runner;
    add(w.tags[nearest.number], 1);
    add(w.tagged, 1);
    if (p.runner_exits_game_after_tagged) {
        w.in_game[runner] = false;
        add(w.runners_left, -1);
    }
}

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) {
        w.tags[i] = 0;
        if (i == 0) w.tagged = 0;
        if (w.in_game[i]) move(w, p, i, actions[i]);
        else w.speed[i] = w.heading[i] = w.acceleration[i] = 0;
    }
    FOR_EACH_AGENT(j, NUM_RUNNERS) {
        const int runner = NUM_TAGGERS + j;
        if (!w.in_game[runner]) continue;
        tag(w, p, runner);
        if (team.last_step && w.in_game[runner]) w.reward[runner] += p.end_of_game_reward_for_runner;
    }
    FOR_EACH_AGENT(tagger, NUM_TAGGERS) {
        w.reward[tagger] += real(w.tags[tagger]) * p.tag_reward_for_tagger;
        if (tagger == 0) w.terminated = w.runners_left == 0;
    }
}

// The number of other agents that an agent observes, and of nearest points to search, which include the agent itself.
constexpr int OBSERVED = USE_FULL_OBSERVATION ? 0 : minimum(NUM_OTHER_AGENTS_OBSERVED, AGENTS - 1);
constexpr int SEARCHED = OBSERVED + 1;

// Writes the numbers of the agents in the game nearest to agent i, other than i, to w.nearest, nearest first; -1 where
// there are too few.
FN void find_nearest(World& w, int i) {
    const Numbers nearest{w.nearest + i};
    if constexpr (SEARCHED <= FEW) {
        AgentNumber points[SEARCHED], agents[SEARCHED + 1];
        const int   count = gpu_envs::nearest(w.point_x, w.point_y, w.points, w.x[i], w.y[i], nearest, points);
        UNROLL
        for (int k = 0; k < SEARCHED; ++k) agents[k] = w.players[k < count ? points[k] : AgentNumber(0)];
        UNROLL
        for (int k = 0; k < SEARCHED; ++k) agents[k] = k < count ? agents[k] : AgentNumber(-1);
        agents[SEARCHED] = -1;
        bool after_self = false;  // agent i itself is left out
        UNROLL
        for (int k = 0; k < OBSERVED; ++k) {
            after_self |= agents[k] == i;
            nearest[k] = after_self ? agents[k + 1] : agents[k];
        }
    } else {
        const Heap heap{w.point_x, w.point_y, w.x[i], w.y[i], nearest};
        const int  count    = nearest_of_many(heap, w.points, SEARCHED, no_limit());
        int        observed = 0;
        for (int k = 0; k < count; ++k) {
            const AgentNumber other = w.players[nearest[k]];
            if (other != i && observed < OBSERVED) nearest[observed++] = other;
        }
        for (; observed < OBSERVED; ++observed) nearest[observed] = -1;
    }
}

// Collects the present agents' positions, and finds the nearest other agents of each.
FN void look(World& w, const Params&, Team& team) {
    if constexpr (!USE_FULL_OBSERVATION) {
        const auto present = [&](int i) { return w.present[i]; };
        gather(team, w.points, AGENTS, in_groups(AGENTS), present, [&](int k, int player) {
            const bool visible = player >= 0 && w.in_game[player];  // not if just tagged, though it observes
            if (player >= 0) w.players[k] = AgentNumber(player);
            w.point_x[k] = visible ? w.x[player] : infinity<real>();
            w.point_y[k] = visible ? w.y[player] : real(0);
        });
        FOR_EACH_AGENT(k, w.points) find_nearest(w, w.players[k]);
    }
}

// The number of features of an agent that another one observes.
constexpr int FEATURES = OBSERVE_SPEEDS ? 7 : 5;

// Writes the features of agent j that agent i observes, as a column.
FN void describe(const World& w, const Params& p, int i, int j, bool in_game, float* column, int columns) {
    const real length = real(1) / (real(1.41421356237309505) * p.grid_length), speed = real(1) / (p.max_speed + real(1e-10));
    column[0]           = float((w.x[j] - w.x[i]) * length);
    column[columns]     = float((w.y[j] - w.y[i]) * length);
    if constexpr (OBSERVE_SPEEDS) {
        column[2 * columns] = float((w.speed[j] - w.speed[i]) * speed);
        column[3 * columns] = float((w.acceleration[j] - w.acceleration[i]) * speed);
    }
    column[(FEATURES - 3) * columns] = float((w.heading[j] - w.heading[i]) * real(1 / (2 * PI)));
    column[(FEATURES - 2) * columns] = is_tagger(j) ? 1.0f : 0.0f;
    column[(FEATURES - 1) * columns] = in_game ? 1.0f : 0.0f;
}

// Writes the features of each other agent (all, or the nearest; zeros for missing ones), feature by feature, and the
// elapsed share of the episode.
FN void observe(const World& w, const Params& p, int i, const Row& row) {
    constexpr int columns = USE_FULL_OBSERVATION ? AGENTS - 1 : NUM_OTHER_AGENTS_OBSERVED;
    FOR_EACH_COLUMN(k, columns) {
        float* const column = &row[k];
        if constexpr (USE_FULL_OBSERVATION) {
            const int other = k < i ? k : k + 1;
            describe(w, p, i, other, w.in_game[other], column, columns);
        } else if (const int other = k < OBSERVED ? w.nearest[k * AGENTS + i] : -1; other >= 0) {
            describe(w, p, i, other, true, column, columns);
        } else {
            UNROLL
            for (int feature = 0; feature < FEATURES; ++feature) column[feature * columns] = 0;
        }
    }
    const real steps = real(minimum(w.elapsed, EPISODE_LENGTH));  // episodes without time limit may be longer
    row[FEATURES * columns] = float(quotient(steps, real(EPISODE_LENGTH), real(1) / real(EPISODE_LENGTH)));
}

FN void measure(World& w, const Params&, Team& team, Metrics& metrics) {
    FOR_EACH_AGENT(first, 1) {
        metrics.tags     = real(w.tagged);
        metrics.survival = real(w.runners_left) / real(NUM_RUNNERS);
    }
}
