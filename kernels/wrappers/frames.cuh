// The last STACK observations of each replica, from the oldest to the newest.
//
// A ring buffer of STACK frames per replica stores them; `slot` is the index of the newest, `depth` the number of
// frames of the episode, up to STACK. A new frame overwrites the next slot, which no stack of this step reads,
// current or final: no thread writes memory that another reads.
// Generated before it: STACK, and Frame, the type of a frame's elements.

enum Update : int { PUSH, RESTART, KEEP };

struct Stack {
    int          slot, depth;
    const Frame* newest;  // the newest frame, if it is not yet in the ring buffer; else null
};

FN bool done(const StackCall& call, Index row) { return (call.terminations[row] | call.truncations[row]) != 0; }

// The update of a row's stack in this step or reset: push a frame, restart with one frame, or keep the stack.
FN Update update_of(const StackCall& call, Index row) {
    if (call.resets) return call.mask == nullptr || call.mask[row] ? RESTART : KEEP;
    if (AUTORESET == SAME_STEP) return done(call, row) ? RESTART : PUSH;
    return !was_done(call.ended, row) ? PUSH : AUTORESET == NEXT_STEP ? RESTART : KEEP;
}

FN int  after(int slot) { return slot + 1 == STACK ? 0 : slot + 1; }

FN Stack pushed(const StackCall& call, Index row, const Frame* newest) {
    return {after(call.slots[row]), minimum(call.depths[row] + 1, STACK), newest};
}

// A row's stack after the update; its newest frame, this step's observation, is not yet in the ring buffer.
FN Stack stack_of(const StackCall& call, Index row, Update update) {
    if (update == KEEP) return {call.slots[row], call.depths[row], nullptr};
    Stack stack = pushed(call, row, call.observations + row * FEATURES);
    if (update == RESTART) stack.depth = 1;
    return stack;
}

// The address of a stack's frame `back` steps ago; before the episode's first frame, of the padding or the first frame.
FN const Frame* frame(const StackCall& call, Index row, const Stack& stack, int back) {
    if (back >= stack.depth) {
        if (call.padding != nullptr) return call.padding;
        back = stack.depth - 1;
    }
    if (back == 0 && stack.newest != nullptr) return stack.newest;
    const int slot = stack.slot - back + (stack.slot < back ? STACK : 0);
    return call.frames + (row * STACK + slot) * FEATURES;
}

// Neighbouring threads take neighbouring columns of a frame, then the next frame, then the next row.
constexpr int SHARERS = ON_GPU ? WIDTH : 1;                       // threads that share a frame
constexpr int LAYERS  = minimum(STACK, THREADS / SHARERS);        // frames of a row at a time
constexpr int ROWS    = THREADS / (SHARERS * LAYERS);             // rows at a time
constexpr int COLUMNS = ON_GPU ? SHARERS : FEATURES;              // columns at a time

// The columns of a frame from `first` on: on a GPU, one per thread.
struct Columns {
    int first, lanes;
    FN explicit Columns(int first_) : first(first_), lanes(minimum(COLUMNS, FEATURES - first_)) {}
    FN int  place(int k) const { return first + (ON_GPU ? thread_rank() % SHARERS : k); }
    FN bool has(int) const { return thread_rank() % SHARERS < lanes; }
};

// Copies a frame, by SHARERS threads.
FN void copy(Frame* to, const Frame* from) {
    for (int first = 0; first < FEATURES; first += COLUMNS) {
        const Columns columns(first);
        FOR_EACH_LANE(k, columns) to[columns.place(k)] = from[columns.place(k)];
    }
}

// Zeroes a frame, by SHARERS threads.
FN void clear(Frame* to) {
    for (int first = 0; first < FEATURES; first += COLUMNS) {
        const Columns columns(first);
        FOR_EACH_LANE(k, columns) to[columns.place(k)] = 0;
    }
}

// Writes the stacks of all rows, and of final observations, then adds this step's observations to the ring buffer.
KERNEL_OF_BLOCKS(kernel_stack, StackCall, TEAM, 1) {
    FOR_EACH_BLOCK(number) {
        const Index first = number * call.rows_of_block, end = minimum(first + call.rows_of_block, call.rows);
        const int   mine = thread_rank() / (SHARERS * LAYERS), layer = thread_rank() / SHARERS % LAYERS;
        for (Index row = mine < ROWS ? first + mine : end; row < end; row += ROWS) {
            const Update update = update_of(call, row);
            const Stack  stack  = stack_of(call, row, update);
            const bool   ends   = AUTORESET == SAME_STEP && update == RESTART && !call.resets;
            const Stack  last   = pushed(call, row, call.final_obs + row * call.final_stride);
            for (int f = layer; f < STACK; f += LAYERS) {
                const Index at = (row * STACK + f) * FEATURES;
                copy(call.stacked + at, frame(call, row, stack, STACK - 1 - f));
                if (ends) copy(call.stacked_final + at, frame(call, row, last, STACK - 1 - f));
                else if (call.fill) clear(call.stacked_final + at);
            }
            if (layer == 0 && update != KEEP)
                copy(call.frames + (row * STACK + stack.slot) * FEATURES, call.observations + row * FEATURES);
        }
        block_barrier();
        for (Index row = first + thread_rank(); row < end; row += THREADS) {
            const Update update = update_of(call, row);
            const Stack  stack  = stack_of(call, row, update);
            call.slots[row]     = stack.slot;
            call.depths[row]    = stack.depth;
            if (AUTORESET == SAME_STEP) continue;
            if (!call.resets) call.ended[row] = done(call, row);
            else if (update == RESTART) call.ended[row] = 0;
        }
    }
}
