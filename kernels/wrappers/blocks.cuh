// Blocks of rows, and sums over them, for the wrappers' kernels.
//
// A block of TEAM threads processes some rows of FEATURES columns; a row has a replica's numbers. Neighbouring threads
// take neighbouring elements, SLOTS rows at a time. On a CPU, one thread works for all TEAM threads, in loops
// over a Span. The order of sums depends only on the number of rows, so they have the same bits on every device.
//
// Generated before it: TEAM, FEATURES, AUTORESET, and SHARED_BYTES, the size of a block's memory for sums.

FN constexpr int power_of_two_within(int n) { return n < 2 ? 1 : 2 * power_of_two_within(n / 2); }

constexpr int THREADS = ON_GPU ? TEAM : 1;                     // actual threads of a block
constexpr int PLACES  = TEAM / THREADS;                        // threads of the TEAM that an actual thread simulates
constexpr int WIDTH   = FEATURES < TEAM ? FEATURES : TEAM;     // columns of a block
constexpr int GROUPS  = (FEATURES + WIDTH - 1) / WIDTH;        // blocks per row
constexpr int SLOTS   = power_of_two_within(TEAM / WIDTH);     // rows that a block processes at a time

// Neighbouring elements, one per thread of the TEAM, or for its first `lanes` threads.
struct Span {
    Index first;
    int   lanes;
    FN int   place(int k) const { return ON_GPU ? thread_rank() : k; }
    FN Index index(int k) const { return first + place(k); }
    FN bool  has(int) const { return thread_rank() < lanes; }
};

// The rows of a Span: on a GPU, the row of the thread's element.
struct RowSpan {
    Index first;
    int   lanes;
    FN Index index(int k) const { return first + (ON_GPU ? thread_rank() / WIDTH : k); }
    FN bool  has(int) const { return thread_rank() / WIDTH < lanes; }
};

// The rows and columns of block `number`; the call has `rows` rows, with `rows_of_block` rows per block.
struct Block {
    Index chunk, first, end;
    int   column;
    template <class Call>
    FN Block(Index number, const Call& call)
        : chunk(number / GROUPS), first(chunk * call.rows_of_block),
          end(minimum(first + call.rows_of_block, call.rows)), column(int(number % GROUPS) * WIDTH) {}
    FN int columns() const { return minimum(WIDTH, FEATURES - column); }
    // SLOTS rows from this one on, and their elements.
    FN RowSpan rows(Index row) const { return {row, int(minimum(Index(SLOTS), end - row))}; }
    FN Span    span(Index row) const { return {row * FEATURES + column, rows(row).lanes * columns()}; }
};

// The threads of the TEAM that have a column: of SLOTS rows, or of one row.
FN Span all_threads() { return {0, SLOTS * WIDTH}; }
FN Span one_row(const Block& block) { return {0, block.columns()}; }

// Adds up sums[slot * WIDTH + column] over the slots, pair by pair, into slot 0; all threads must call it.
template <class T> FN void fold(T* sums) {
    for (int half = SLOTS / 2; half > 0; half /= 2) {
        block_barrier();
        const Span pairs = {0, half * WIDTH};
        FOR_EACH_LANE(k, pairs) sums[pairs.place(k)] += sums[pairs.place(k) + half * WIDTH];
    }
    block_barrier();
}

// Whether the episode of a row was over before this step; never in SameStep, which has no such array.
FN bool was_done(const u8* ended, Index row) { return AUTORESET != SAME_STEP && ended[row] != 0; }
