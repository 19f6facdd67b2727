// What follows the blocks of update.cuh: a step of Adam along the sum of what they found.
//
// They leave a row each of one matrix, a column for each parameter and each of the loss's sums. Its columns are summed in
// an order that depends on nothing but the number of rows, 32 columns, a strip, by a team of warps. Then the blocks wait for
// one another once, and each takes the step of its own columns. The blocks of a launch have to be `together`.

constexpr int SLICES  = 8;  // a column's rows go by turns to so many sums
constexpr int AT_ONCE = 9;  // rows that a thread fetches at a time of each: 72 of a column, all of those of 144 blocks
constexpr int STRIPS  = BLOCK / WARP;  // in what is a block in optimise.cuh

struct StepMemory {
    static constexpr int SHARERS = SLICES, TEAMS = STEP_THREADS / WARP / SHARERS;  // warps of a team
    static_assert(STEP_THREADS % (SHARERS * WARP) == 0);
    FN static StepMemory& of_block() { return *reinterpret_cast<StepMemory*>(staging); }
    float slices[TEAMS][SLICES][WARP];
    Rates rates;
};

// What a team's warp adds to its slices of a strip.
template <int SHARERS, class Call>
FN void add_rows(const Call& call, int column, int sharer, float (&slices)[SLICES][WARP]) {
    constexpr int own    = SLICES / SHARERS, many = AT_ONCE * own;
    const int     columns = int(call.parameters) + SUMS;
    const bool    critic  = (call.critic <= column && column < call.critic_end) || column == call.value_loss;
    const int     rows    = column < columns ? (critic ? call.critics : call.actors) : 0;
    const float*  place   = call.partials + column;
    float         sums[own] = {};
    for (int first = sharer; first < rows; first += many * SHARERS) {
        float found[many];
        UNROLL
        for (int turn = 0; turn < many; ++turn) {
            const int row = first + turn * SHARERS;
            found[turn]   = row < rows ? place[Index(row) * columns] : 0.0f;
        }
        UNROLL
        for (int turn = 0; turn < many; ++turn) sums[turn % own] += found[turn];
    }
    UNROLL
    for (int slice = 0; slice < own; ++slice) slices[sharer + slice * SHARERS][thread_rank() % WARP] = sums[slice];
}

// Calls use(strip, column, sum) with all threads of the warp that has the sums of a strip's columns; of columns beyond the
// last they are 0. The whole block calls it.
template <class Call, class Use> FN void for_each_strip(const Call& call, StepMemory& memory, const Use& use) {
    const int warp = thread_rank() / WARP, team = warp / StepMemory::SHARERS, sharer = warp % StepMemory::SHARERS;
    const int strips = (call.parameters + SUMS + WARP - 1) / WARP;
    for (int turn = block_number() * StepMemory::TEAMS; turn < strips; turn += block_count() * StepMemory::TEAMS) {
        const int strip = turn + team, column = strip * WARP + thread_rank() % WARP;
        add_rows<StepMemory::SHARERS>(call, column, sharer, memory.slices[team]);
        block_barrier();
        if (sharer == 0 && strip < strips) {
            float sum = 0;
            UNROLL
            for (int slice = 0; slice < SLICES; ++slice) sum += memory.slices[team][slice][thread_rank() % WARP];
            if (call.log_std <= column && column < call.log_std + call.log_stds) {
                // One beyond a bound is as if at it; of its gradient only what leads back counts, lest it stay there.
                const float log_std  = call.flat[column];
                const bool  outwards = (log_std < call.low && sum > 0) || (log_std > call.high && sum < 0);
                if (outwards) sum = 0;
            }
            use(strip, column, sum);
        }
        block_barrier();
    }
}

// The sum of all strips' squares, in the order of optimise.cuh. The whole warp calls it.
template <class Call> FN float sum_of_squares(const Call& call) {
    const auto* const blocks = reinterpret_cast<const Wide<STRIPS>*>(call.strip_squares);
    float             sum    = 0;
    for (int first = 0; first < call.blocks; first += WARP) {
        const int     block = first + thread_rank() % WARP;
        float         own   = 0;
        if (block < call.blocks) {
            const Wide<STRIPS> strips = blocks[block];
            UNROLL
            for (int strip = 0; strip < STRIPS; ++strip) own += strips.value[strip];
        }
        sum += summed_over_warp(own);
    }
    return sum;
}

// With the step along the sum.
template <class Call> FN void step(const Call& call) {
    auto& memory = StepMemory::of_block();
    // What the first block writes is read before it may.
    const bool stopped = call.stop != nullptr && *call.stop != 0;
    const i64  steps   = *call.steps + 1;
    const u32  round   = PROCESSES > 1 ? u32(call.rounds[0]) + 1 : 0;
    for_each_strip(call, memory, [&](int strip, int column, float sum) {
        if (column < call.count + SUMS) {
            if (PROCESSES > 1) {  // (Strips come in the same order to all, so that nobody waits for who waits for him.)
                tell_others(call, round, column, bits_of(sum));
                sum = summed_over_processes(call, round, column, sum);
            }
            call.message[column] = sum;
        }
        const float squares = summed_over_warp(column < call.count ? sum * sum : 0.0f);
        if (thread_rank() % WARP == 0) call.strip_squares[strip] = squares;
    });
    u32* const  arrived = reinterpret_cast<u32*>(call.arrivals);
    const u32   before  = arrive_at_grid(arrived);
    const int   warp = thread_rank() / WARP, lane = thread_rank() % WARP, count = int(call.count);
    const int   strip   = block_number() * StepMemory::TEAMS + warp / StepMemory::SHARERS;
    const int   first   = warp % StepMemory::SHARERS == 0 ? strip * WARP + lane : count;
    Moments     moments = {};
    if (first < count) moments = moments_of(call, first);
    if (thread_rank() == STEP_THREADS - 1) memory.rates = rates_of(call, steps);
    wait_for_grid(arrived, before);
    if (warp % StepMemory::SHARERS != 0 || strip * WARP >= count) return;
    const Outcome outcome = outcome_of(call, stopped, square_root(sum_of_squares(call)));
    if (outcome.active) {
        _Pragma("unroll 1")  // nearly always there is one
        for (int i = first; i < count; i += block_count() * StepMemory::TEAMS * WARP) {
            if (i != first) moments = moments_of(call, i);
            take_step(call, i, moments, outcome.gradient_factor, memory.rates);
        }
    }
    if (strip != 0) return;
    if (lane == 0) write_outcome(call, outcome, steps);
    if (PROCESSES > 1) {
        for (int block = lane; block < call.blocks; block += WARP) call.rounds[block] = int(round);
    }
}

// Alone.
template <class Call> FN void reduce(const Call& call) {
    for_each_strip(call, StepMemory::of_block(), [&](int, int column, float sum) {
        if (column < call.parameters) call.gradient[column] = sum;
        else if (column < call.parameters + SUMS) call.totals[column - call.parameters] = sum;
    });
}
