// Tag on a grid: taggers chase one runner, cell by cell. The game of WarpDrive's TagGridWorld (Lan, Srinivasa, Wang &
// Zheng 2022, JMLR 23), but with observations after tags, and separate terminations and truncations.

constexpr int THE_RUNNER = NUM_TAGGERS;

// A random cell, 0 to n - 1, for an agent.
FN int draw_cell(const Team& team, int agent, int n) {
    Random random = team.random(RESET, agent);
    return random.integer(n);
}

FN void reset(World& w, const Params& p, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) {
        const int side = p.grid_length + 1;
        int       cell = draw_cell(team, THE_RUNNER, side * side);
        if (i != THE_RUNNER) {
            const int other = draw_cell(team, i, side * side - 1);  // any but the runner's
            cell            = other < cell ? other : other + 1;
        }
        const bool fixed  = p.start == Start::fixed;
        const int  centre = i == THE_RUNNER ? 0 : p.grid_length / 2;
        w.x[i] = fixed ? centre : cell % side;
        w.y[i] = fixed ? centre : cell / side;
        if (i == 0) w.runners_left = 1;
    }
}

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) {
        const int  action = actions[i];  // stay, +x, -x, +y, -y
        const int  x = w.x[i] + (action == 1) - (action == 2), y = w.y[i] + (action == 3) - (action == 4);
        w.x[i]      = clip(x, 0, p.grid_length);
        w.y[i]      = clip(y, 0, p.grid_length);
        w.reward[i] = w.x[i] != x || w.y[i] != y ? -p.wall_hit_penalty : real(0);
        if (i == 0) w.tags = 0;
    }
    FOR_EACH_AGENT(tagger, NUM_TAGGERS) {
        if (w.x[tagger] == w.x[THE_RUNNER] && w.y[tagger] == w.y[THE_RUNNER]) add(w.tags, 1);
    }
    FOR_EACH_AGENT(i, AGENTS) {
        const bool tagged = w.tags > 0;
        if (i == THE_RUNNER) {
            w.reward[i] += tagged ? -p.tag_penalty_for_runner : p.step_cost_for_tagger;
            if (tagged) {
                w.in_game[i]   = false;
                w.runners_left = 0;
                w.terminated   = true;
            }
        } else {
            w.reward[i] += tagged ? p.tag_reward_for_tagger : -p.step_cost_for_tagger;
        }
    }
}

// Scales the agents' cells to [0, 1], and finds the runner's nearest tagger; of equally near ones, the lowest number.
FN void look(World& w, const Params& p, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) {
        const float length = float(p.grid_length), inverse = 1.0f / length;
        w.column[i] = quotient(float(w.x[i]), length, inverse);
        w.line[i]   = quotient(float(w.y[i]), length, inverse);
        if (i == 0) w.nearest_tagger = w.nearest_distance = 0x7fffffff;
    }
    if constexpr (!USE_FULL_OBSERVATION) {
        FOR_EACH_AGENT(i, NUM_TAGGERS) {
            const int dx = w.x[i] - w.x[THE_RUNNER], dy = w.y[i] - w.y[THE_RUNNER];
            w.distance[i] = dx * dx + dy * dy;
            lower(w.nearest_distance, w.distance[i]);
        }
        FOR_EACH_AGENT(i, NUM_TAGGERS) {
            if (w.distance[i] == w.nearest_distance) lower(w.nearest_tagger, i);
        }
    }
}

FN float kind_of(int agent) { return agent == THE_RUNNER ? 1.0f : 0.0f; }

FN void observe(const World& w, const Params&, int i, const Row& row) {
    const float steps = float(minimum(w.elapsed, EPISODE_LENGTH));  // episodes without time limit may be longer
    const float time  = quotient(steps, float(EPISODE_LENGTH), 1.0f / float(EPISODE_LENGTH));
    if constexpr (USE_FULL_OBSERVATION) {
        FOR_EACH_COLUMN(j, AGENTS) {
            row[j]              = float(w.column[j]);
            row[j + AGENTS]     = float(w.line[j]);
            row[j + 2 * AGENTS] = kind_of(j);
            row[j + 3 * AGENTS] = j == i ? 1.0f : 0.0f;
        }
        row[4 * AGENTS] = time;
    } else {
        const int target = i == THE_RUNNER ? w.nearest_tagger : THE_RUNNER;
        row[0] = float(w.column[i]);
        row[1] = float(w.line[i]);
        row[2] = float(w.column[target]);
        row[3] = float(w.line[target]);
        row[4] = kind_of(i);
        row[5] = time;
    }
}

FN void measure(World& w, const Params&, Team& team, Metrics& metrics) {
    FOR_EACH_AGENT(first, 1) {
        const int tags   = 1 - w.runners_left;
        metrics.tags     = real(tags);
        metrics.survival = real(w.elapsed - tags);
    }
}
