// Writes a team's rows of observations.

// Writes an agent's features and, unless SEPARATE_SHARED, its role's shared features, into the agent's row.
FN void observe_agent(const World& w, const Params& p, int i, const Row& row) {
    const int  role   = role_of(i);
    const bool within = !SEPARATE_SHARED && shared_features_of(role) > 0;
    observe(w, p, i, {row.at, row.lane, shared_at(role), within ? shared_features_of(role) : 0});
    if (within) observe_shared(w, p, role, {row.at + shared_at(role), row.lane});
}

// Writes an agent's row; zeros if it is not present.
FN void write_row(const World& w, const Params& p, int i, const Row& row) {
    if (w.present[i]) observe_agent(w, p, i, row);
    else FOR_EACH_COLUMN(j, row_size(role_of(i))) row[j] = 0;
}

// The rows to write: all to `observations`; in a step that ends an episode, LAST_ROWS: final rows to `final_obs`, rows
// of other replicas to `observations`; then FIRST_ROWS: the first rows of the next episodes.
enum Rows { ALL_ROWS, LAST_ROWS, FIRST_ROWS };

// Writes all agents' rows directly to global memory, final ones to `final_obs`, others to `observations`.
template <class Call>
FN void observe_directly(const World& w, const Params& p, Team& team, const Call& call, Rows rows) {
    for (int i = team.begin() / ROW_LANES; i < AGENTS || team.sync(); i += team.size / ROW_LANES) {
        const int       r    = role_of(i);
        const RoleCall& to   = call.role[r];
        const Element   at   = row_of(team.replica, i) * row_size(r);
        // (without SPREAD, the block's one replica ends, and its `finished` may not be visible yet)
        const bool      last = rows == LAST_ROWS && (SCHEDULE != SPREAD || w.finished);
        write_row(w, p, i, {(last ? to.final_obs : to.observations) + at, thread_rank() % ROW_LANES});
    }
}

// The rows of one role in a chunk of agents, for all replicas of the block.
struct Chunk {
    int   low;     // index of the first agent within the role
    int   each;    // floats per replica
    Element at;    // offset of the target in the role's array
    int   staged;  // offset in shared memory, equal to the target's address modulo 16 bytes

    template <class Call> FN Chunk(const Call& call, Index first, int begin, int role) {
        low    = clip(begin - first_of(role), 0, count_of(role));
        each   = (clip(begin + CHUNK_AGENTS - first_of(role), 0, count_of(role)) - low) * row_size(role);
        at     = (first * count_of(role) + low) * row_size(role);
        staged = staged_before(role) + int(u64(call.role[role].observations + at) / sizeof(float) % 4);
    }
};

// Copies the rows, `each` floats per replica, of the block's few replicas whose episode ends: one warp per replica.
FN void copy_finished(const World& w, const Team& team, float* to, const float* from, int each, int replicas) {
    const int warp = thread_rank() / WARP, lane = thread_rank() % WARP, warps = THREADS / WARP;
    for (int start = 0; start < replicas; start += WARP) {
        const int slot     = start + lane;
        u32       finished = warp_ballot(slot < replicas && (&w.finished)[slot < replicas ? slot - team.slot : 0]);
        for (int turn = 0; finished != 0; ++turn, finished &= finished - 1) {
            const int at = start + lowest_bit(finished);
            if (turn % warps == warp) copy_out<true>(to + Index(at) * each, from + at * each, each, lane, WARP);
        }
    }
}

// Writes all agents' rows via shared memory, CHUNK_AGENTS agents of the block's replicas at a time: coalesced stores.
template <class Call>
FN void observe_by_block(const World& w, const Params& p, Team& team, const Call& call, Rows rows, char* local) {
    float* const staged   = reinterpret_cast<float*>(local + ROWS_AT);
    const Index  first    = team.block * TEAMS;
    const int    replicas = call.buffers.count - first < TEAMS ? int(call.buffers.count - first) : TEAMS;
    for (int begin = 0; begin < AGENTS; begin += CHUNK_AGENTS) {
        if (begin != 0 || rows == FIRST_ROWS) {  // earlier rows are still in shared memory
            wait_for_copies();  // an episode's first rows overwrite the step's earlier rows
            block_barrier();
        }
        for (int i = begin + (team.active ? team.rank : AGENTS); i < minimum(begin + CHUNK_AGENTS, AGENTS); i += team.size) {
            const int   role = role_of(i);
            const Chunk chunk(call, first, begin, role);
            const int   row = team.slot * chunk.each + (i - first_of(role) - chunk.low) * row_size(role);
            write_row(w, p, i, {staged + chunk.staged + row, 0});
        }
        publish();
        block_barrier();
        UNROLL
        for (int role = 0; role < ROLES; ++role) {
            const Chunk  chunk(call, first, begin, role);
            const float* from = staged + chunk.staged;
            if (rows != FIRST_ROWS)
                copy_out<true>(call.role[role].observations + chunk.at, from, replicas * chunk.each, thread_rank(), THREADS);
            if (rows == ALL_ROWS) continue;
            float* const to = (rows == LAST_ROWS ? call.role[role].final_obs : call.role[role].observations) + chunk.at;
            copy_finished(w, team, to, from, chunk.each, replicas);
        }
    }
}

// Writes all agents' rows via shared memory, a few at a time per warp: ROW_LANES threads write a row together, then the
// warp copies the rows. Rows of absent agents are zeroed first, so that threads work only on present ones.
template <class Call>
FN void observe_by_warps(const World& w, const Params& p, Team& team, const Call& call, Rows rows, char* local) {
    constexpr int groups = WARP / ROW_LANES;  // rows at a time; WARP % ROW_LANES threads are idle
    const int    warp = thread_rank() / WARP, lane = thread_rank() % WARP, group = lane / ROW_LANES;
    float* const staged = reinterpret_cast<float*>(local + ROWS_AT) + warp * WARP_FLOATS;
    const bool   last   = rows == LAST_ROWS;  // the block has one replica, whose episode ends
    float*       bases[ROLES];
    UNROLL
    for (int r = 0; r < ROLES; ++r)
        bases[r] = (last ? call.role[r].final_obs : call.role[r].observations) + team.replica * (count_of(r) * row_size(r));
    for (int batch = warp; team.active && batch < batches_before(ROLES); batch += THREADS / WARP) {
        int    role = 0;
        float* base = bases[0];
        UNROLL
        for (int r = 1; r < ROLES; ++r) {
            role = batch >= batches_before(r) ? r : role;
            base = batch >= batches_before(r) ? bases[r] : base;
        }
        const int       first = (batch - batches_before(role)) * rows_together(role), features = row_size(role);
        const int       count = minimum(rows_together(role), count_of(role) - first), agent = first_of(role) + first;
        float* const    to    = base + first * features;
        float* const    from  = staged + int(u64(to) / sizeof(float) % 4);  // equal to `to` modulo 16 bytes

        u32 present = warp_ballot(lane < count && w.present[agent + minimum(lane, count - 1)]);
        wait_for_copy_reads();  // of the previous rows
        warp_barrier();
        if (present != ~u32(0) >> (WARP - count)) {
            zero_fill(staged, WARP_FLOATS, lane, WARP);
            warp_barrier();
        }
        UNROLL  // each group of ROW_LANES threads takes every groups-th present row
        for (int skipped = 0; skipped < groups; ++skipped) present &= skipped < group ? present - 1 : ~u32(0);
        while (present != 0 && group < groups) {
            const int row = lowest_bit(present);
            observe_agent(w, p, agent + row, {from + row * features, lane - group * ROW_LANES});
            UNROLL
            for (int taken = 0; taken < groups; ++taken) present &= present - 1;
        }
        publish();
        warp_barrier();
        copy_out<(ROW_LANES < WARP)>(to, from, count * features, lane, WARP);
    }
    team.sync();
}

// Writes each role's shared features into their own array, one row per replica; zeros if no agent of it is present.
template <class Call> FN void observe_apart(const World& w, const Params& p, Team& team, const Call& call, Rows rows) {
    const int groups = team.size / ROW_LANES, group = team.begin() / ROW_LANES;
    for (int role = group; group < groups && role < ROLES; role += groups) {
        const int size = shared_features_of(role), lane = thread_rank() % ROW_LANES;
        // (if the block has one replica, that one ends; `finished` is visible, as a barrier precedes FIRST_ROWS)
        const bool last = rows == LAST_ROWS && ((SCHEDULE != SPREAD && TEAMS == 1) || w.finished);
        if (size == 0 || (rows == FIRST_ROWS && !w.finished)) continue;
        const auto&     arrays = call.role[role];
        float* const    to     = (last ? arrays.final_shared : arrays.shared_observations) + team.replica * size;
        bool present = false;
        for (int k = 0; k < count_of(role) && !present; ++k) present = w.present[first_of(role) + k];
        if (present) {
            observe_shared(w, p, role, {to, lane});
        } else {
            for (int j = lane; j < size; j += ROW_LANES) to[j] = 0;
        }
    }
}
