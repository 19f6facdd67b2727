// Rows in blocks, and what they add up to: what the kernels of the wrappers share.
//
// A block of TEAM threads has some rows of FEATURES columns; a row has a replica's numbers. Neighbouring threads take
// neighbouring elements, SLOTS rows at a time. On a CPU one thread does the work of all of them, in loops over a Span.
// Sums are taken in an order that depends on the number of rows alone, so they have the same bits everywhere.
//
// Generated before it: TEAM, FEATURES, AUTORESET and SHARED_BYTES, which a block has to add up in.

FN constexpr int power_of_two_within(int n) { return n < 2 ? 1 : 2 * power_of_two_within(n / 2); }

constexpr int THREADS = ON_GPU ? TEAM : 1;                     // that a block really has
constexpr int PLACES  = TEAM / THREADS;                        // of the TEAM, those that a thread stands for
constexpr int WIDTH   = FEATURES < TEAM ? FEATURES : TEAM;     // columns of a block
constexpr int GROUPS  = (FEATURES + WIDTH - 1) / WIDTH;        // blocks that share a row
constexpr int SLOTS   = power_of_two_within(TEAM / WIDTH);     // rows that a block takes at a time

// Neighbouring elements, one for each of the TEAM's places, or for some of the first.
struct Span {
    Index first;
    int   lanes;
    FN int   place(int k) const { return ON_GPU ? thread_rank() : k; }
    FN Index index(int k) const { return first + place(k); }
    FN bool  has(int) const { return thread_rank() < lanes; }
};

// The rows of such elements: on a GPU a thread has that of its own.
struct RowSpan {
    Index first;
    int   lanes;
    FN Index index(int k) const { return first + (ON_GPU ? thread_rank() / WIDTH : k); }
    FN bool  has(int) const { return thread_rank() / WIDTH < lanes; }
};

// The rows and columns of a block: of a call with so many `rows`, `rows_of_block` of them in a block.
struct Block {
    Index chunk, first, end;
    int   column;
    template <class Call>
    FN Block(Index number, const Call& call)
        : chunk(number / GROUPS), first(chunk * call.rows_of_block),
          end(minimum(first + call.rows_of_block, call.rows)), column(int(number % GROUPS) * WIDTH) {}
    FN int columns() const { return minimum(WIDTH, FEATURES - column); }
    // This row and the next, SLOTS of them; and their elements.
    FN RowSpan rows(Index row) const { return {row, int(minimum(Index(SLOTS), end - row))}; }
    FN Span    span(Index row) const { return {row * FEATURES + column, rows(row).lanes * columns()}; }
};

// All places that have a column: of SLOTS rows, or of a single one.
FN Span all_places() { return {0, SLOTS * WIDTH}; }
FN Span one_row(const Block& block) { return {0, block.columns()}; }

// Adds up each column's sums over the slots, pair by pair; the block waits, and slot 0 has the sums.
template <class T> FN void fold(T* sums) {
    for (int half = SLOTS / 2; half > 0; half /= 2) {
        block_barrier();
        const Span pairs = {0, half * WIDTH};
        FOR_EACH_LANE(k, pairs) sums[pairs.place(k)] += sums[pairs.place(k) + half * WIDTH];
    }
    block_barrier();
}

// Whether the episode of a row was over before this step. In SameStep none ever is, and nothing is kept.
FN bool was_over(const u8* ended, Index row) { return AUTORESET != SAME_STEP && ended[row] != 0; }
