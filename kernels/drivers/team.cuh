// Teams: many agents per replica. The rules are a sequence of phases,
//
//   FOR_EACH_AGENT(i, n) { ... }   agents 0 to n-1: in parallel on a GPU, a loop on a CPU; all are done at its end
//
// and otherwise plain code. A body writes fields of its agent in the World, or any agent's integers by add() and
// lower(), and reads fields that earlier phases wrote. With n = 1 it may write all fields. `continue` is allowed, `break`
// and `return` are not. Only fields of the World keep their values from one phase to the next, and code between phases
// must not depend on the World.
// step() writes its results there: w.reward[i] of each agent, and w.terminated.
//
// The same header runs with three schedules. On a CPU, a thread runs a replica. On a GPU, a block has one or several
// replicas, with their Worlds in shared memory; or, for large teams and few replicas, each phase is a launch over the
// full GPU, with the World in global memory.

// A thread's part in the phases: its replica and first agent.
struct Team {
    Index   block;    // index in the launch
    Element replica;
    int   slot;        // index of the replica's World in the block
    int   rank;        // this thread's first agent
    bool  here;        // whether this thread has a replica
    bool  active;      // whether that replica takes part in the next phases
    int   phase;       // number of phases so far
    int   only;        // the phase of this launch
    bool  last_step;   // whether the time limit is reached
    const u64* seed;
    const u32* episode;
    const u64* shared_seed;
    const u32* no_episode;

    template <class Buffers>
    FN Team(Index block_, const Buffers& buffers, int only_phase)
        : block(block_), phase(0), only(only_phase), last_step(false) {
        const int thread = thread_rank();
        if (SCHEDULE == HOST) {
            replica = Element(block), slot = 0, rank = 0;
        } else if (SCHEDULE == SPREAD) {
            replica = Element(block / tiles), slot = 0;
            rank = int(block % tiles) * THREADS + thread;
        } else {
            slot    = TEAMS == 1 ? 0 : thread / AGENTS;
            rank    = TEAMS == 1 ? thread : thread - slot * AGENTS;
            replica = Element(block * TEAMS) + slot;
        }
        here    = slot < TEAMS && replica < buffers.count;
        slot    = here ? slot : 0;
        replica = here ? replica : 0;
        active  = here;
        seed    = buffers.seeds + replica;
        episode = buffers.episodes + replica;
        shared_seed = buffers.shared_seed;
        no_episode  = reinterpret_cast<const u32*>(buffers.shared_seed + 1);
    }

    // Starts a phase, and returns this thread's first agent; NONE if the thread has no part in it.
    FN int begin() {
        const bool now = SCHEDULE != SPREAD || phase == only;
        ++phase;
        return active && now ? rank : NONE;
    }
    FN bool sync() const {
        if (SCHEDULE == BLOCK) block_barrier();
        return false;
    }
    // Whether `value` is true for any replica of the block; a barrier, if there are several. Always true if each phase
    // is a launch: then every launch must count all phases.
    FN bool any(bool value) const { return SCHEDULE == SPREAD || (TEAMS > 1 ? block_any(value) : value); }

    // Random-number generators of agent i: for this replica's reset or step, and for numbers that all replicas share.
    FN Random random(Stream stream, int i, int step = 0) const { return {seed, episode, stream, u32(i), u32(step)}; }
    FN Random shared_random(Stream stream, int i) const { return {shared_seed, no_episode, stream, u32(i), 0}; }

    static constexpr int NONE  = 0x7fffffff;
    static constexpr int tiles = (AGENTS + THREADS - 1) / THREADS;  // blocks per team in the SPREAD schedule
    static constexpr int size  =                                  // threads per team
        SCHEDULE == BLOCK && TEAMS > 1 ? AGENTS : SCHEDULE == SPREAD ? tiles * THREADS : THREADS;
};

#define FOR_EACH_AGENT(i, n) for (int i = team.begin(); i < (n) || team.sync(); i += team.size)

// FOR_EACH_AGENT without the barrier at its end.
#define FOR_EACH_AGENT_NO_WAIT(i, n) for (int i = team.begin(); i < (n); i += team.size)

// A phase over rows and columns: one iteration per element on a GPU, with neighbouring columns in neighbouring threads,
// one per row on a CPU. An iteration may read elements that this phase writes only if it wrote them itself.
#define FOR_EACH_ELEMENT(i, j, rows, columns)                                                        \
    FOR_EACH_AGENT(TURN_##i##_##j, ON_GPU ? (rows) * (columns) : (rows))                             \
        for (int i = ON_GPU ? TURN_##i##_##j / (columns) : TURN_##i##_##j,                           \
                 j = ON_GPU ? TURN_##i##_##j % (columns) : 0, END_##j = ON_GPU ? j + 1 : (columns);  \
             j < END_##j; ++j)

// One row of observations, written by ROW_LANES threads: thread `lane` writes every ROW_LANES-th column.
struct Row {
    float* at;
    int    lane;
    int    shared_at = 0, shared = 0;  // first column and number of the features that all agents of the role share
    FN float& operator[](int j) const { return at[SHARED && !SEPARATE_SHARED && j >= shared_at ? j + shared : j]; }
};

#define FOR_EACH_COLUMN(j, n) for (int j = row.lane; j < (n); j += ROW_LANES)

// A phase that compacts: calls put(0, i), put(1, i) and so on for each i < n with keep(i), in ascending order, and
// put(k, -1) for the remaining k < room; `count` receives the number of kept i.
template <class Keep, class Put>
FN void gather(Team& team, int& count, int n, int room, const Keep& keep, const Put& put) {
    if (SCHEDULE == BLOCK && TEAMS > 1) {
        FOR_EACH_AGENT(i, n) {
            int before = 0, all = 0;
            for (int j = 0; j < n; ++j) {
                before += j < i && keep(j) ? 1 : 0;
                all += keep(j) ? 1 : 0;
            }
            if (keep(i)) put(before, i);
            for (int k = all + i; k < room; k += n) put(k, -1);
            if (i == 0) count = all;
        }
        return;
    }
    const int first = team.begin();
    if (first < THREADS) {  // only the team's first block, with all its threads
        int before = 0;  // kept numbers of earlier iterations
        for (int start = 0; start < n; start += THREADS) {
            const int  i    = start + thread_rank();
            const bool kept = i < n && keep(i);
            if (start != 0) block_barrier();
            int       total;
            const int index = before + block_rank<THREADS>(kept, total);
            if (kept) put(index, i);
            before += total;
        }
        for (int k = before + thread_rank(); k < room; k += THREADS) put(k, -1);
        if (thread_rank() == 0) count = before;
    }
    team.sync();
}
