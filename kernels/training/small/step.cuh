// A step of Adam along the sum of the gradients of update.cuh's blocks.
//
// Each block of the update wrote a row of partial sums, with a column for each parameter and each SUMS of the loss. A
// team of warps sums a strip of 32 columns: SLICES sums of every SLICES-th row, and their sum. After a grid barrier each
// team updates its columns' parameters. The barrier needs a cooperative launch, whose blocks are all resident.
//
// With several runs a warp sums strips alone, and loads of several strips overlap. A launch for their steps has one
// block for each run, which needs no grid barrier.

constexpr int TEAM         = SEVERAL ? 1 : SLICES;  // warps
constexpr int AT_ONCE      = SEVERAL ? 6 : 1;       // strips
constexpr int ROWS_AT_ONCE = 9;  // rows of a slice that are loaded at once: with 144 blocks all 72 rows of a column
constexpr int STRIPS       = BLOCK / WARP;  // of a block of optimise.cuh

struct StepMemory {
    static constexpr int TEAMS = STEP_THREADS / WARP / TEAM;
    static_assert(STEP_THREADS % (TEAM * WARP) == 0);
    FN static StepMemory& of_block() { return *reinterpret_cast<StepMemory*>(staging); }
    float slices[TEAMS][TEAM][WARP];
    Rates rates;
};

// The number of rows with partial sums of a column.
template <class Call> FN int rows_of(const Call& call, int column) {
    const bool critic = (call.critic <= column && column < call.critic_end) || column == call.value_loss;
    return critic ? call.critics : call.actors;
}

// The sum of a column of the partial sums, over the rows of slice number `member`.
template <class Call> FN float sum_slice(const Call& call, int column, int member) {
    const int     columns = int(call.parameters) + SUMS;
    const int     rows    = column < columns ? rows_of(call, column) : 0;
    const float*  partial = call.partials + column;
    float         sum     = 0;
    for (int first = member; first < rows; first += ROWS_AT_ONCE * SLICES) {
        float loaded[ROWS_AT_ONCE];
        UNROLL
        for (int load = 0; load < ROWS_AT_ONCE; ++load) {
            const int row = first + load * SLICES;
            loaded[load]  = row < rows ? partial[Index(row) * columns] : 0.0f;
        }
        UNROLL
        for (int load = 0; load < ROWS_AT_ONCE; ++load) sum += loaded[load];
    }
    return sum;
}

// Sums columns that are `apart`, from `column` on, over all rows; those beyond the last are 0.
template <class Call> FN void sum_columns(float (&sums)[AT_ONCE], const Call& call, int column, int apart) {
    const int columns = int(call.parameters) + SUMS, most = maximum(call.actors, call.critics);
    const int slices  = most > SLICES ? SLICES : 1;  // (up to SLICES rows the order is the same)
    int       rows[AT_ONCE];
    UNROLL
    for (int k = 0; k < AT_ONCE; ++k) {
        rows[k] = column + k * apart < columns ? rows_of(call, column + k * apart) : 0;
        sums[k] = 0;
    }
    for (int slice = 0; slice < slices; ++slice) {
        float of_slice[AT_ONCE] = {};
        for (int row = slice; row < most; row += slices) {
            const float* partial = call.partials + Index(row) * columns + column;
            UNROLL
            for (int k = 0; k < AT_ONCE; ++k) of_slice[k] += row < rows[k] ? partial[k * apart] : 0.0f;
        }
        UNROLL
        for (int k = 0; k < AT_ONCE; ++k) sums[k] += of_slice[k];
    }
}

// Log standard deviations are clipped; beyond a bound only gradients that lead back inside count.
template <class Call> FN float without_outward_step(const Call& call, int column, float sum) {
    if (column < call.log_std || column >= call.log_std + call.log_stds) return sum;
    const float log_std = call.flat[column];
    return (log_std < call.low && sum > 0) || (log_std > call.high && sum < 0) ? 0.0f : sum;
}

// Calls use(strip, column, sum) for each strip, with all threads of one warp of its team; sums of columns beyond the
// last are 0. All threads of the block call it.
template <class Call, class Use> FN void for_each_strip(const Call& call, StepMemory& memory, const Use& use) {
    const int warp = thread_rank() / WARP, team = warp / TEAM, member = warp % TEAM;
    const int strips = (call.parameters + SUMS + WARP - 1) / WARP, apart = block_count() * StepMemory::TEAMS;
    for (int begin = block_number() * StepMemory::TEAMS; begin < strips; begin += AT_ONCE * apart) {
        const int strip = begin + team, column = strip * WARP + thread_rank() % WARP;
        if constexpr (TEAM == 1) {
            float sums[AT_ONCE];
            sum_columns(sums, call, column, apart * WARP);
            UNROLL
            for (int k = 0; k < AT_ONCE; ++k) {
                const int at = column + k * apart * WARP;
                if (strip + k * apart < strips) use(strip + k * apart, at, without_outward_step(call, at, sums[k]));
            }
            continue;
        }
        memory.slices[team][member][thread_rank() % WARP] = sum_slice(call, column, member);
        block_barrier();
        if (member == 0 && strip < strips) {
            float sum = 0;
            UNROLL
            for (int slice = 0; slice < TEAM; ++slice) sum += memory.slices[team][slice][thread_rank() % WARP];
            use(strip, column, without_outward_step(call, column, sum));
        }
        block_barrier();
    }
}

// The squared norm of the gradient: the sum over strips (32 columns each), in the order of optimise.cuh. All threads of
// a warp call it.
template <class Call> FN float squared_norm(const Call& call) {
    const auto* const blocks = reinterpret_cast<const Wide<STRIPS>*>(call.strip_squares);
    float             sum    = 0;
    for (int first = 0; first < call.blocks; first += WARP) {
        const int     block = first + thread_rank() % WARP;
        float         local = 0;
        if (block < call.blocks) {
            const Wide<STRIPS> strips = blocks[block];
            UNROLL
            for (int strip = 0; strip < STRIPS; ++strip) local += strips.value[strip];
        }
        sum += warp_sum(local);
    }
    return sum;
}

// Sums the gradient over blocks and processes, and takes Adam's step.
template <class Call> FN void step(const Call& call) {
    auto& memory = StepMemory::of_block();
    // read before the grid barrier, after which the first block writes them
    const bool stopped = call.stop != nullptr && *call.stop != 0;
    const i64  steps   = *call.steps + 1;
    const u32  round   = PROCESSES > 1 ? u32(call.rounds[0]) + 1 : 0;
    for_each_strip(call, memory, [&](int strip, int column, float sum) {
        if (column < call.count + SUMS) {
            if (PROCESSES > 1) {  // (all processes visit strips in the same order: no deadlock)
                send_to_peers(call, round, column, bits_of(sum));
                sum = summed_over_processes(call, round, column, sum);
            }
            call.message[column] = sum;
        }
        const float squares = warp_sum(column < call.count ? sum * sum : 0.0f);
        if (thread_rank() % WARP == 0) call.strip_squares[strip] = squares;
    });
    u32* const  arrived = reinterpret_cast<u32*>(call.arrivals);
    const u32   before  = SEVERAL ? 0 : arrive_at_grid(arrived);
    const int   warp = thread_rank() / WARP, lane = thread_rank() % WARP, count = int(call.count);
    const int   strip   = block_number() * StepMemory::TEAMS + warp / TEAM;
    const int   first   = warp % TEAM == 0 ? strip * WARP + lane : count;
    const int   apart   = block_count() * StepMemory::TEAMS * WARP;
    Moments     moments[AT_ONCE] = {};
    const auto  load    = [&](int i) {
        UNROLL
        for (int k = 0; k < AT_ONCE; ++k) {
            if (i + k * apart < count) moments[k] = moments_of(call, i + k * apart);
        }
    };
    load(first);
    if (thread_rank() == STEP_THREADS - 1) memory.rates = rates_of(call, steps);
    if (SEVERAL) block_barrier();
    else wait_for_grid(arrived, before);
    if (warp % TEAM != 0 || strip * WARP >= count) return;
    const Outcome outcome = outcome_of(call, stopped, square_root(squared_norm(call)));
    if (outcome.active) {
        NO_UNROLL
        for (int i = first; i < count; i += AT_ONCE * apart) {
            if (i != first) load(i);
            UNROLL
            for (int k = 0; k < AT_ONCE; ++k) {
                const int at = i + k * apart;
                if (at < count) take_step(call, at, moments[k], outcome.gradient_factor, memory.rates);
            }
        }
    }
    if (strip != 0) return;
    if (lane == 0) write_outcome(call, outcome, steps);
    if (PROCESSES > 1) {
        for (int block = lane; block < call.blocks; block += WARP) call.rounds[block] = int(round);
    }
}

// Sums the blocks' partial sums of the gradient and the loss, in a fixed order, without a step.
template <class Call> FN void reduce(const Call& call) {
    for_each_strip(call, StepMemory::of_block(), [&](int, int column, float sum) {
        if (column < call.parameters) call.gradient[column] = sum;
        else if (column < call.parameters + SUMS) call.totals[column - call.parameters] = sum;
    });
}
