// Teams: many agents in one replica. A header of rules is a sequence of phases,
//
//   FOR_EACH_AGENT(i, n) { ... }   over agents 0 to n-1: in parallel on a GPU, a loop on a CPU; all are done at its end
//
// and reads as a plain program. A body writes its own agent's fields of the World, or an integer of any by add() and
// lower(), and reads what earlier phases wrote. `continue` is fine, `break` and `return` are not. Nothing but fields of
// the World lasts from one phase to the next, and what stands between phases does not depend on the World.
//
// One header, three schedules: on a CPU a thread works through a replica; on a GPU a block has one replica or several,
// with their Worlds in shared memory; and where a team is large and replicas are few, every phase is a launch of its
// own over the whole GPU, with the World in global memory.

struct Team {
    Index   block;    // of the launch
    Element replica;
    int   slot;        // of the block's Worlds
    int   rank;        // this thread's first agent
    bool  here;        // whether this thread has a replica
    bool  active;      // whether that one takes part in the phases to come
    int   phase;       // of those so far
    int   only;        // the one phase of this launch
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

    // The first agent of this thread in the phase that begins; none where it has no part in it.
    FN int begin() {
        const bool now = SCHEDULE != SPREAD || phase == only;
        ++phase;
        return active && now ? rank : NONE;
    }
    FN bool sync() const {
        if (SCHEDULE == BLOCK) block_barrier();
        return false;
    }
    // Whether any replica of the block says so. Where a phase is a launch, all phases are gone through. With several
    // replicas in a block, it is a barrier too.
    FN bool any(bool mine) const { return SCHEDULE == SPREAD || (TEAMS > 1 ? block_any(mine) : mine); }

    // The random numbers of agent i in this reset or step; and those that all replicas and episodes share.
    FN Random random(Stream stream, int i, int step = 0) const { return {seed, episode, stream, u32(i), u32(step)}; }
    FN Random shared_random(Stream stream, int i) const { return {shared_seed, no_episode, stream, u32(i), 0}; }

    static constexpr int NONE  = 0x7fffffff;
    static constexpr int tiles = (AGENTS + THREADS - 1) / THREADS;  // blocks of a team that is spread
    static constexpr int size  = SCHEDULE == BLOCK && TEAMS > 1 ? AGENTS : SCHEDULE == SPREAD ? tiles * THREADS : THREADS;  // threads
};

#define FOR_EACH_AGENT(i, n) for (int i = team.begin(); i < (n) || team.sync(); i += team.size)

// The same without the wait at its end.
#define FOR_EACH_AGENT_NO_WAIT(i, n) for (int i = team.begin(); i < (n); i += team.size)

// A phase over rows and columns, with a turn for each element on a GPU, where neighbouring threads have neighbouring
// columns, and for each row on a CPU. Within a row a turn reads what it wrote of the same element alone.
#define FOR_EACH_ELEMENT(i, j, rows, columns)                                                        \
    FOR_EACH_AGENT(TURN_##i##_##j, ON_GPU ? (rows) * (columns) : (rows))                             \
        for (int i = ON_GPU ? TURN_##i##_##j / (columns) : TURN_##i##_##j,                           \
                 j = ON_GPU ? TURN_##i##_##j % (columns) : 0, END_##j = ON_GPU ? j + 1 : (columns);  \
             j < END_##j; ++j)

// One row of observations. Narrow ones are written by a thread each, wide ones by ROW_LANES threads together, each of
// which takes its columns.
struct Row {
    float* at;
    int    lane;
    int    shared_at = 0, shared = 0;  // numbers that all agents of the role see alike, among an agent's own
    FN float& operator[](int j) const { return at[SHARED && !SEPARATE_SHARED && j >= shared_at ? j + shared : j]; }
};

#define FOR_EACH_COLUMN(j, n) for (int j = row.lane; j < (n); j += ROW_LANES)

// A phase: calls put(0, i), put(1, i) and so on for those i of 0 to n-1 that `keep`, in ascending order, and put(k, -1)
// for what is left up to room-1; `count` becomes their number.
template <class Keep, class Put> FN void gather(Team& team, int& count, int n, int room, const Keep& keep, const Put& put) {
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
    if (first < THREADS) {  // the first block of the team; all its threads
        int found = 0;
        for (int start = 0; start < n; start += THREADS) {
            const int  i    = start + thread_rank();
            const bool kept = i < n && keep(i);
            if (start != 0) block_barrier();
            int       total;
            const int place = found + block_place<THREADS>(kept, total);
            if (kept) put(place, i);
            found += total;
        }
        for (int k = found + thread_rank(); k < room; k += THREADS) put(k, -1);
        if (thread_rank() == 0) count = found;
    }
    team.sync();
}
