// Sums of a matrix's columns over its rows, and of their squares, in float64, for the statistics of observations. Rows
// of inactive agents, which may hold NaN, are left out; a row that agents share counts once for each active agent.
//
// A thread has a column of every `parts`-th row: neighbouring threads load neighbouring elements.

constexpr int CHUNK = ON_GPU ? 8 : 1;  // rows that are loaded before any is added, so that latencies overlap

FN int active_agents(const ColumnsCall& call, Index row) {
    if (call.alive == nullptr) return call.group_size;
    int count = 0;
    for (int agent = 0; agent < call.group_size; ++agent) count += call.alive[row * call.group_size + agent] != 0;
    return count;
}

KERNEL(kernel_columns, ColumnsCall) {
    FOR_EACH_ENV(env, call.columns * call.parts) {
        double total[LANES], squares[LANES], count[LANES];
        Index  part[LANES];
        FOR_EACH_LANE(k, env) {
            total[k] = squares[k] = count[k] = 0;
            part[k] = env.index(k) / call.columns;
        }
        for (Index first = 0; first < call.rows; first += CHUNK * call.parts) {
            float value[CHUNK][LANES];
            int   agents[CHUNK][LANES];
            UNROLL
            for (int c = 0; c < CHUNK; ++c) {
                FOR_EACH_LANE(k, env) {
                    const Index before = first + c * call.parts, row = before + part[k];
                    agents[c][k] = row < call.rows ? active_agents(call, row) : 0;
                    value[c][k]  = agents[c][k] ? call.values[before * call.columns + env.index(k)] : 0.0f;
                }
            }
            UNROLL
            for (int c = 0; c < CHUNK; ++c) {
                FOR_EACH_LANE(k, env) {
                    const double weighted = double(agents[c][k]) * value[c][k];
                    total[k] += weighted;
                    squares[k] += weighted * value[c][k];
                    count[k] += agents[c][k];
                }
            }
        }
        FOR_EACH_LANE(k, env) {
            const Index column = env.index(k) % call.columns, at = column * call.parts + part[k];
            const Index apart  = call.columns * call.parts;
            call.sums[at] = total[k];
            call.sums[apart + at] = squares[k];
            call.sums[2 * apart + at] = count[k];
        }
    }
}
