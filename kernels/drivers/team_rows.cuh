// How a team's rows of observations are written.

// What an agent sees: numbers of its own, and where those are not apart what all of its role see alike.
FN void observe_agent(const World& w, const Params& p, int i, const Row& row) {
    const int  role   = role_of(i);
    const bool within = !SEPARATE_SHARED && shared_features_of(role) > 0;
    observe(w, p, i, {row.at, row.lane, shared_at(role), within ? shared_features_of(role) : 0});
    if (within) observe_shared(w, p, role, {row.at + shared_at(role), row.lane});
}

FN void write_row(const World& w, const Params& p, int i, const Row& row) {
    if (w.present[i]) {
        observe_agent(w, p, i, row);
    } else {
        FOR_EACH_COLUMN(j, row_size(role_of(i))) row[j] = 0;
    }
}

// Which rows of observations are meant.
enum Rows { ALL_ROWS, LAST_ROWS, FIRST_ROWS };  // everybody's; of episodes that end, the last; of their next, the first

// Rows go straight to where they belong: the last ones of an episode to `final_obs`.
template <class Call> FN void observe_directly(const World& w, const Params& p, Team& team, const Call& call, Rows rows) {
    for (int i = team.begin() / ROW_LANES; i < AGENTS || team.sync(); i += team.size / ROW_LANES) {
        const int       own  = role_of(i);
        const RoleCall& to   = call.role[own];
        const Element   at   = (team.replica * count_of(own) + (i - first_of(own))) * row_size(own);
        // (elsewhere the one replica here is at its end; and what was written there a moment ago may not be there yet)
        const bool      last = rows == LAST_ROWS && (SCHEDULE != SPREAD || w.finished);
        write_row(w, p, i, {(last ? to.final_obs : to.observations) + at, thread_rank() % ROW_LANES});
    }
}

// The rows of one role in a chunk of agents, of all replicas of the block.
struct Chunk {
    int   low;     // the first agent, counted within the role
    int   each;    // floats of one replica
    Element at;    // where they go, from the role's first row
    int   staged;  // where they wait: as far from a multiple of 16 bytes as where they go

    template <class Call> FN Chunk(const Call& call, Index first, int begin, int role) {
        low    = clip(begin - first_of(role), 0, count_of(role));
        each   = (clip(begin + CHUNK_AGENTS - first_of(role), 0, count_of(role)) - low) * row_size(role);
        at     = (first * count_of(role) + low) * row_size(role);
        staged = staged_before(role) + int(u64(call.role[role].observations + at) / sizeof(float) % 4);
    }
};

// Copies the rows of the few replicas whose episode ends, a warp for each.
FN void copy_finished(const World& w, const Team& team, float* to, const float* from, int each, int replicas) {
    const int warp = thread_rank() / WARP, lane = thread_rank() % WARP, warps = THREADS / WARP;
    for (int start = 0; start < replicas; start += WARP) {
        const int slot     = start + lane;
        u32       finished = warp_marks(slot < replicas && (&w.finished)[slot < replicas ? slot - team.slot : 0]);
        for (int turn = 0; finished != 0; ++turn, finished &= finished - 1) {
            const int at = start + lowest_bit(finished);
            if (turn % warps == warp) copy_out<true>(to + Index(at) * each, from + at * each, each, lane, WARP);
        }
    }
}

// Rows pass through shared memory, a chunk of agents at a time, so that neighbouring threads write neighbouring words.
template <class Call> FN void observe_by_block(const World& w, const Params& p, Team& team, const Call& call, Rows rows, char* local) {
    float* const staged   = reinterpret_cast<float*>(local + ROWS_AT);
    const Index  first    = team.block * TEAMS;
    const int    replicas = call.buffers.count - first < TEAMS ? int(call.buffers.count - first) : TEAMS;
    for (int begin = 0; begin < AGENTS; begin += CHUNK_AGENTS) {
        if (begin != 0 || rows == FIRST_ROWS) {  // the rows before these are still there
            settle_copies();  // first rows go where the last ones went
            block_barrier();
        }
        for (int i = begin + (team.active ? team.rank : AGENTS); i < minimum(begin + CHUNK_AGENTS, AGENTS); i += team.size) {
            const int   role = role_of(i);
            const Chunk own(call, first, begin, role);
            const int   row = team.slot * own.each + (i - first_of(role) - own.low) * row_size(role);
            write_row(w, p, i, {staged + own.staged + row, 0});
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

// Rows pass through shared memory, a few at a time for each warp: ROW_LANES threads write a row together, then all of
// them copy the rows. Rows of who is out are zeroed beforehand, so that threads are spent on the others alone.
template <class Call> FN void observe_by_warps(const World& w, const Params& p, Team& team, const Call& call, Rows rows, char* local) {
    constexpr int groups = WARP / ROW_LANES;  // rows at a time; where ROW_LANES divides no warp, a few threads have none
    const int    warp = thread_rank() / WARP, lane = thread_rank() % WARP, group = lane / ROW_LANES;
    float* const staged = reinterpret_cast<float*>(local + ROWS_AT) + warp * WARP_FLOATS;
    const bool   last   = rows == LAST_ROWS;  // the block's one replica is at its end
    float*       bases[ROLES];
    UNROLL
    for (int r = 0; r < ROLES; ++r)
        bases[r] = (last ? call.role[r].final_obs : call.role[r].observations) + team.replica * (count_of(r) * row_size(r));
    for (int batch = warp; team.active && batch < batches_before(ROLES); batch += THREADS / WARP) {
        int    own  = 0;
        float* base = bases[0];
        UNROLL
        for (int r = 1; r < ROLES; ++r) {
            own  = batch >= batches_before(r) ? r : own;
            base = batch >= batches_before(r) ? bases[r] : base;
        }
        const int       first = (batch - batches_before(own)) * rows_together(own), features = row_size(own);
        const int       many  = minimum(rows_together(own), count_of(own) - first), agent = first_of(own) + first;
        float* const    to    = base + first * features;
        float* const    from  = staged + int(u64(to) / sizeof(float) % 4);  // as far from a multiple of 16 bytes

        u32 present = warp_marks(lane < many && w.present[agent + minimum(lane, many - 1)]);
        await_copies();  // of the rows before
        warp_barrier();
        if (present != ~u32(0) >> (WARP - many)) {
            zero_out(staged, WARP_FLOATS, lane, WARP);
            warp_barrier();
        }
        UNROLL
        for (int skipped = 0; skipped < groups; ++skipped) present &= skipped < group ? present - 1 : ~u32(0);
        while (present != 0 && group < groups) {
            const int row = lowest_bit(present);
            observe_agent(w, p, agent + row, {from + row * features, lane - group * ROW_LANES});
            UNROLL
            for (int taken = 0; taken < groups; ++taken) present &= present - 1;
        }
        publish();
        warp_barrier();
        copy_out<(ROW_LANES < WARP)>(to, from, many * features, lane, WARP);
    }
    team.sync();
}

// What all agents of a role see alike goes straight to where it belongs, once a replica: zeros where none is present.
template <class Call> FN void observe_apart(const World& w, const Params& p, Team& team, const Call& call, Rows rows) {
    const int groups = team.size / ROW_LANES, group = team.begin() / ROW_LANES;
    for (int own = group; group < groups && own < ROLES; own += groups) {
        const int size = shared_features_of(own), lane = thread_rank() % ROW_LANES;
        // (see observe_directly; before first rows there was a wait)
        const bool last = rows == LAST_ROWS && ((SCHEDULE != SPREAD && TEAMS == 1) || w.finished);
        if (size == 0 || (rows == FIRST_ROWS && !w.finished)) continue;
        float* const to = (last ? call.role[own].final_shared : call.role[own].shared_observations) + team.replica * size;
        bool here = false;
        for (int k = 0; k < count_of(own) && !here; ++k) here = w.present[first_of(own) + k];
        if (here) {
            observe_shared(w, p, own, {to, lane});
        } else {
            for (int j = lane; j < size; j += ROW_LANES) to[j] = 0;
        }
    }
}
