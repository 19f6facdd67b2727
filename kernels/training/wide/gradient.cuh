// The gradients of wide perceptrons' weights: products of what back.cuh kept, 64 samples at a time, and their sums. And the
// weights as they stream.
//
// A block has 128 rows of one layer's gradient, and workers_of(l) blocks share the samples of each such slice. What all
// blocks find is added up in an order that depends on nothing but their number.

template <class Net, int L> struct Layer {
    static constexpr bool LAST = L == Net::LAST;
    static constexpr int  LEFT = LAST ? L : Net::LAYERS + L, RIGHT = LAST ? 2 * Net::LAYERS - 1 : L;  // numbers of what is kept
    static constexpr int  ROWS = Net::kept_lines(LEFT), LINES = Net::kept_lines(RIGHT);
    static constexpr int  PARTS = L == 0 ? Net::INPUT_PARTS : 1, COLUMNS = Net::gradient_columns(L);
    static constexpr bool ONES = LAST || L > 0;  // (the inputs have a line of ones of their own)
    static constexpr int  BIASES = LAST ? COLUMNS : 8, SIZE = Net::partial_size(L);
};

constexpr int LEFT_BYTES = SLICE * PIECE, RIGHT_BYTES = 256 * PIECE, DEEP = 4;

struct GradientMemory {
    Ring<DEEP, LEFT_BYTES + RIGHT_BYTES, GROUPS> ring;
    alignas(1024) unsigned char ones[GROUP_ROWS * PIECE];

    FN static GradientMemory& of_block() { return *reinterpret_cast<GradientMemory*>(memory_of_block(1024)); }
};
// What a worker reads of one layer, piece by piece of each of its units: those that were kept last, which a cache still
// has, come first.
template <class Net, int L, class Call> struct Units {
    using Of = Layer<Net, L>;
    static constexpr int PIECES = GROUP_ROWS / EACH;
    const Call&     call;
    GradientMemory& memory;
    int             slice, worker, workers;

    FN void operator()(u32 number) const {
        const Index before = worker + Index(number / PIECES) * workers, unit = call.units - 1 - before;
        const int   first = slice / Of::PARTS * SLICE, part = slice % Of::PARTS;
        const u32   piece = number % PIECES, lines = u32(minimum_of(SLICE, Of::ROWS - first));
        if (before >= call.units) return;
        const unsigned char* const left  = kept_of<Net>(call, Of::LEFT, unit) + first * PIECE;
        const unsigned char* const right = kept_of<Net>(call, Of::RIGHT, unit) + part * Of::COLUMNS * PIECE;
        memory.ring.open(number, (lines + Of::COLUMNS) * PIECE);
        memory.ring.copy(number, 0, left + piece * Of::ROWS * PIECE, lines * PIECE);
        memory.ring.copy(number, LEFT_BYTES, right + piece * Of::LINES * PIECE, Of::COLUMNS * PIECE);
    }
};

template <class Net, int L, class Call>
FN void find_gradient(const Call& call, float* partial, int slice, int worker, int workers) {
    using Of              = Layer<Net, L>;
    auto&         memory  = GradientMemory::of_block();
    const int     group   = group_of_block();
    const Units<Net, L, Call> units = {call, memory, slice, worker, workers};
    for (int e = thread_rank(); e < GROUP_ROWS * EACH; e += THREADS) {
        reinterpret_cast<Stored*>(memory.ones)[e] = Arithmetic::stored(1.0f);
    }
    publish();
    if (thread_rank() == 0) memory.ring.begin(units);
    block_barrier();
    float         c[Of::COLUMNS / 8][4] = {}, bias[Of::BIASES / 8][4] = {};
    const Lines<> ones(u32(from_lane(int(shared_address(memory.ones)), 0)));
    u32           number = 0;
    for (Index before = worker; before < call.units; before += workers) {
        for (int piece = 0; piece < units.PIECES; ++piece, ++number) {
            memory.ring.await(number);
            const u32     stage = u32(from_lane(int(shared_address(memory.ring.stages[number % DEEP])), 0));
            const Lines<> left(stage + u32(group * GROUP_ROWS * PIECE)), right(stage + LEFT_BYTES);
            begin_products();
            UNROLL
            for (int step = 0; step < EACH / DEPTH; ++step) {
                const u32 bytes = u32(step * DEPTH * int(sizeof(Stored)));
                Product<Of::COLUMNS>::add(c, left.at(bytes), right.at(bytes), true);
                if (Of::LAST) Product<Of::BIASES>::add(bias, ones.at(0), right.at(bytes), true);
                else if (Of::ONES) Product<Of::BIASES>::add(bias, left.at(bytes), ones.at(0), true);
            }
            commit_products();
            finish<1>();
            if (number > 0) memory.ring.leave(number - 1, units);
        }
    }
    finish<0>();
    settle(c);
    settle(bias);
    const int lane = warp_lane(), first = group * GROUP_ROWS + thread_rank() / WARP % 4 * WARP_ROWS + lane / 4;
    float*    own  = partial + worker * Of::SIZE;
    UNROLL
    for (int q = 0; q < 4; ++q) {
        const int row = first + q / 2 * 8, column = lane % 4 * 2 + q % 2;
        UNROLL
        for (int j = 0; j < Of::COLUMNS / 8; ++j) own[row * Of::COLUMNS + 8 * j + column] = c[j][q];
        UNROLL
        for (int j = 0; j < Of::BIASES / 8; ++j) {
            if (Of::LAST ? row == 0 : Of::ONES && j == 0 && column == 0) {
                own[SLICE * Of::COLUMNS + (Of::LAST ? 8 * j + column : row)] = bias[j][q];
            }
        }
    }
}

template <class Net, int L, class Call> FN void find_any(const Call& call, int block) {
    constexpr Found at      = found_at<Net>(L);
    constexpr int   workers = workers_of<Net>(L), blocks = Net::slices_of(L) * workers;
    if (block < at.first_block + blocks) {
        const int slice = (block - at.first_block) / workers, worker = (block - at.first_block) % workers;
        find_gradient<Net, L>(call, call.partials + at.first + Index(slice) * workers * Layer<Net, L>::SIZE, slice, worker,
                              workers);
    } else if constexpr (L + 1 < Net::LAYERS) {
        find_any<Net, L + 1>(call, block);
    } else if constexpr (Net::NUMBER + 1 < Net::NETS) {
        find_any<typename Net::Next, 0>(call, block);
    }
}

template <class Shape, class Call> FN void gradient(const Call& call) { find_any<NetOf<Shape, 0>, 0>(call, block_number()); }

// --- the sum over blocks ---

template <class Net, class Call> FN float over_blocks(const Call& call, int place) {
    const int first = Net::NUMBER == 1 ? call.actors : 0, end = Net::NUMBER + 1 < Net::NETS ? call.actors : call.blocks;
    float     sum   = 0;
    _Pragma("unroll 16")
    for (int block = first; block < end; ++block) sum += call.sums[block * Layout<typename Net::Shape>::SUMS_OF_BLOCK + place];
    return sum;
}

template <class Net, int L, class Call> FN bool sum_up(const Call& call, int parameter, float& sum) {
    using Of              = Layer<Net, L>;
    constexpr Linear at   = Net::layer(L);
    constexpr int columns = L == 0 ? at.columns : Net::in_of(L), weights = at.weight, biases = at.bias;
    constexpr int rows    = at.rows, workers = workers_of<Net>(L);
    const bool    weight = weights <= parameter && parameter < weights + rows * columns;
    const bool    bias   = biases <= parameter && parameter < biases + rows;
    if (weight || bias) {
        const int out = weight ? (parameter - weights) / columns : parameter - biases;
        const int in  = weight ? (parameter - weights) % columns : L == 0 ? Net::FEATURES : 0;
        if (out >= Net::out_of(L) || (weight && in >= Net::in_of(L))) return true;  // padding
        const bool  plain = weight || L == 0;
        const int   row = Of::LAST ? in : out, column = Of::LAST ? out : in;
        const int   slice = plain || !Of::LAST ? row / SLICE * Of::PARTS + column / Of::COLUMNS : 0;
        const Index place = plain ? Index(row % SLICE) * Of::COLUMNS + column % Of::COLUMNS
                                  : Index(SLICE) * Of::COLUMNS + (Of::LAST ? column : row % SLICE);
        constexpr Found found = found_at<Net>(L);
        const float*    from  = call.partials + found.first + Index(slice) * workers * Of::SIZE + place;
        _Pragma("unroll 16")
        for (int worker = 0; worker < workers; ++worker) sum += from[Index(worker) * Of::SIZE];
        return true;
    }
    if constexpr (Net::NORM && L + 1 < Net::LAYERS) {
        const int  by_gain = parameter - at.gain, by_shift = parameter - at.shift;
        const bool gain = 0 <= by_gain && by_gain < rows, shift = 0 <= by_shift && by_shift < rows;
        if (gain || shift) {
            const int place = Net::LOSSES + Net::LOG_STDS + Net::bias_of(L) + (gain ? by_gain : Net::NORMED + by_shift);
            sum = over_blocks<Net>(call, place);
            return true;
        }
    }
    if constexpr (L + 1 < Net::LAYERS) return sum_up<Net, L + 1>(call, parameter, sum);
    else if constexpr (Net::NUMBER + 1 < Net::NETS) return sum_up<typename Net::Next, 0>(call, parameter, sum);
    else return false;
}

template <class Shape, class Call> FN void reduce(const Call& call) {
    using First      = NetOf<Shape, 0>;
    using Last       = NetOf<Shape, Shape::NETS - 1>;
    const int column = block_number() * THREADS + thread_rank();
    float     sum    = 0;
    if (column < call.parameters) {
        const bool log_std = Shape::LOG_STDS > 0 && Shape::LOG_STD_AT <= column && column < Shape::LOG_STD_AT + Shape::LOG_STDS;
        if (log_std) {
            sum = over_blocks<First>(call, Shape::LOSSES + column - Shape::LOG_STD_AT);
        } else {
            sum_up<First, 0>(call, column, sum);
        }
        if (call.more) sum += call.gradient[column];
        if (log_std && call.last) {
            // One beyond a bound is as if at it; of its gradient only what leads back counts, lest it stay there.
            const float value    = call.flat[column];
            const bool  outwards = (value < LOG_STD_LOW && sum > 0) || (value > LOG_STD_HIGH && sum < 0);
            if (outwards) sum = 0;
        }
        call.gradient[column] = sum;
    } else if (column < call.parameters + Shape::LOSSES) {
        const int s = column - call.parameters;
        sum         = s == VALUE_LOSS ? over_blocks<Last>(call, s) : over_blocks<First>(call, s);
        call.totals[s] = (call.more ? call.totals[s] : 0.0f) + sum;
    }
}

// --- weights as they stream: pieces of lines of LINE bytes, in the order in which they are used ---

template <class Net, int STEP, class Call> FN void pack_step(const Call& call, int first, int every) {
    constexpr int l = Net::layer_of(STEP), lines = Net::lines_of(STEP), depths = pieces_of(Net::depth_of(STEP)) * LINE_EACH;
    constexpr int columns = l == 0 ? Net::layer(0).columns : Net::in_of(l);
    Stored* const to = reinterpret_cast<Stored*>(call.packed + Net::packed_place(STEP));
    for (int e = first; e < lines * depths; e += every) {
        const int  line = e / depths, depth = e % depths;
        const int  out = STEP < Net::LAYERS ? line : depth;
        const int  in  = STEP < Net::LAYERS ? depth : line + (l == 0 ? Net::INPUTS_FROM : 0);
        const bool there = out < Net::out_of(l) && in < Net::in_of(l);
        const float weight = there ? call.flat[Net::layer(l).weight + out * columns + in] : 0.0f;
        const int   place  = (depth / LINE_EACH * lines + line) * LINE_EACH + within_line(line, depth % LINE_EACH);
        to[place]          = Arithmetic::stored(weight);
    }
    if constexpr (STEP + 1 < Net::STEPS) pack_step<Net, STEP + 1>(call, first, every);
    else if constexpr (Net::NUMBER + 1 < Net::NETS) pack_step<typename Net::Next, 0>(call, first, every);
}

template <class Shape, class Call> FN void pack(const Call& call) {
    pack_step<NetOf<Shape, 0>, 0>(call, block_number() * THREADS + thread_rank(), block_count() * THREADS);
}

// --- sizes, which Python reads ---

template <class S> constexpr u64 BLOCK_BYTES = 1024 + (RESIDENT<S> ? sizeof(ResidentMemory<S>) : sizeof(WideMemory<S>));
