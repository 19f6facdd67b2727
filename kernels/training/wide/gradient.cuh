// The gradients of wide perceptrons' weights: products of the tiles that backward.cuh saved, 64 samples at a time, and
// their sums over blocks. Also packs the weights for streaming.
//
// A block computes 128 rows of one layer's gradient, a slice; workers_of(l) blocks share the samples of a slice. Their
// partial sums are added in an order that depends only on the number of blocks.

template <class Net, int L> struct LayerGradient {
    static constexpr bool LAST = L == Net::LAST;
    static constexpr int  LEFT = LAST ? L : Net::LAYERS + L, RIGHT = LAST ? 2 * Net::LAYERS - 1 : L;  // saved tiles
    static constexpr int  ROWS = Net::saved_lines(LEFT), LINES = Net::saved_lines(RIGHT);
    static constexpr int  PARTS = L == 0 ? Net::INPUT_PARTS : 1, COLUMNS = Net::gradient_columns(L);
    static constexpr bool ONES = LAST || L > 0;  // saved inputs include a line of ones
    static constexpr int  BIASES = LAST ? COLUMNS : 8, SIZE = Net::partial_size(L);
};

constexpr int LEFT_BYTES = SLICE_ROWS * PIECE, RIGHT_BYTES = 256 * PIECE, RING_STAGES = 4;

struct GradientMemory {
    Ring<RING_STAGES, LEFT_BYTES + RIGHT_BYTES, GROUPS> ring;
    alignas(1024) unsigned char ones[GROUP_ROWS * PIECE];

    FN static GradientMemory& of_block() { return *reinterpret_cast<GradientMemory*>(aligned_shared_memory(1024)); }
};

// Copies the pieces of a worker's units of one layer to the ring. The units that were saved last come first: they are
// still in the L2 cache.
template <class Net, int L, class Call> struct UnitCopies {
    using Sizes = LayerGradient<Net, L>;
    static constexpr int PIECES = GROUP_ROWS / PIECE_ELEMENTS;
    const Call&     call;
    GradientMemory& memory;
    int             slice, worker, workers;

    FN void operator()(u32 number) const {
        const Index age = worker + Index(number / PIECES) * workers, unit = call.units - 1 - age;
        const int   first = slice / Sizes::PARTS * SLICE_ROWS, part = slice % Sizes::PARTS;
        const u32   piece = number % PIECES, lines = u32(minimum_of(SLICE_ROWS, Sizes::ROWS - first));
        if (age >= call.units) return;
        const unsigned char* const left  = saved_unit<Net>(call, Sizes::LEFT, unit) + first * PIECE;
        const unsigned char* const right = saved_unit<Net>(call, Sizes::RIGHT, unit) + part * Sizes::COLUMNS * PIECE;
        memory.ring.open(number, (lines + Sizes::COLUMNS) * PIECE);
        memory.ring.copy(number, 0, left + piece * Sizes::ROWS * PIECE, lines * PIECE);
        memory.ring.copy(number, LEFT_BYTES, right + piece * Sizes::LINES * PIECE, Sizes::COLUMNS * PIECE);
    }
};

// Writes to `partial` a worker's sums of a slice (SLICE_ROWS rows) of layer L's gradient, biases included, over the
// samples in its share of the saved units. The slice's gradient is the sum over its workers.
template <class Net, int L, class Call>
FN void layer_gradient(const Call& call, float* partial, int slice, int worker, int workers) {
    using Sizes           = LayerGradient<Net, L>;
    auto&         memory  = GradientMemory::of_block();
    const int     group   = group_of_block();
    const UnitCopies<Net, L, Call> units = {call, memory, slice, worker, workers};
    for (int e = thread_rank(); e < GROUP_ROWS * PIECE_ELEMENTS; e += THREADS) {
        reinterpret_cast<Stored*>(memory.ones)[e] = Arithmetic::stored(1.0f);
    }
    publish();
    if (thread_rank() == 0) memory.ring.start(units);
    block_barrier();
    float         c[Sizes::COLUMNS / 8][4] = {}, bias[Sizes::BIASES / 8][4] = {};
    const LineDescriptor<> ones(u32(shuffle(int(shared_address(memory.ones)), 0)));
    u32           number = 0;
    for (Index age = worker; age < call.units; age += workers) {
        for (int piece = 0; piece < units.PIECES; ++piece, ++number) {
            memory.ring.wait(number);
            const u32     stage = u32(shuffle(int(shared_address(memory.ring.stages[number % RING_STAGES])), 0));
            const LineDescriptor<> left(stage + u32(group * GROUP_ROWS * PIECE)), right(stage + LEFT_BYTES);
            start_products();
            UNROLL
            for (int step = 0; step < PIECE_ELEMENTS / DEPTH; ++step) {
                const u32 bytes = u32(step * DEPTH * int(sizeof(Stored)));
                Product<Sizes::COLUMNS>::add(c, left.at(bytes), right.at(bytes), true);
                if (Sizes::LAST) Product<Sizes::BIASES>::add(bias, ones.at(0), right.at(bytes), true);
                else if (Sizes::ONES) Product<Sizes::BIASES>::add(bias, left.at(bytes), ones.at(0), true);
            }
            commit_products();
            wait_products<1>();
            if (number > 0) memory.ring.release(number - 1, units);
        }
    }
    wait_products<0>();
    fence_registers(c);
    fence_registers(bias);
    const int lane = warp_lane(), first = group * GROUP_ROWS + thread_rank() / WARP % 4 * WARP_ROWS + lane / 4;
    float*    sums = partial + worker * Sizes::SIZE;
    UNROLL
    for (int q = 0; q < 4; ++q) {
        const int row = first + q / 2 * 8, column = lane % 4 * 2 + q % 2;
        UNROLL
        for (int j = 0; j < Sizes::COLUMNS / 8; ++j) sums[row * Sizes::COLUMNS + 8 * j + column] = c[j][q];
        UNROLL
        for (int j = 0; j < Sizes::BIASES / 8; ++j) {
            if (Sizes::LAST ? row == 0 : Sizes::ONES && j == 0 && column == 0) {
                sums[SLICE_ROWS * Sizes::COLUMNS + (Sizes::LAST ? 8 * j + column : row)] = bias[j][q];
            }
        }
    }
}

// Runs layer_gradient() for this block's layer, slice and worker; `block` counts from the launch's first. Searches from
// layer L on, also in later nets.
template <class Net, int L, class Call> FN void dispatch_gradient(const Call& call, int block) {
    constexpr GradientStart at = gradient_start<Net>(L);
    constexpr int workers = workers_of<Net>(L), blocks = Net::slices_of(L) * workers;
    constexpr int size    = LayerGradient<Net, L>::SIZE;
    if (block < at.first_block + blocks) {
        const int slice = (block - at.first_block) / workers, worker = (block - at.first_block) % workers;
        layer_gradient<Net, L>(call, call.partials + at.first_partial + Index(slice) * workers * size, slice, worker,
                               workers);
    } else if constexpr (L + 1 < Net::LAYERS) {
        dispatch_gradient<Net, L + 1>(call, block);
    } else if constexpr (Net::NUMBER + 1 < Net::NETS) {
        dispatch_gradient<typename Net::Next, 0>(call, block);
    }
}

template <class Shape, class Call> FN void gradient(const Call& call) {
    dispatch_gradient<NetOf<Shape, 0>, 0>(call, block_number());
}

// The sum over a net's blocks of number `index` of BLOCK_SUMS: losses, gradients of log stds, gains and shifts.
template <class Net, class Call> FN float sum_over_blocks(const Call& call, int index) {
    const int first = Net::NUMBER == 1 ? call.actors : 0, end = Net::NUMBER + 1 < Net::NETS ? call.actors : call.blocks;
    float     sum   = 0;
    _Pragma("unroll 16")
    for (int block = first; block < end; ++block) {
        sum += call.sums[block * Layout<typename Net::Shape>::BLOCK_SUMS + index];
    }
    return sum;
}

// Sets `sum`, zero before, to a parameter's gradient; returns false if no layer from `L` on has the parameter.
template <class Net, int L, class Call> FN bool sum_up(const Call& call, int parameter, float& sum) {
    using Sizes           = LayerGradient<Net, L>;
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
        const int   row = Sizes::LAST ? in : out, column = Sizes::LAST ? out : in;
        const int   slice = plain || !Sizes::LAST ? row / SLICE_ROWS * Sizes::PARTS + column / Sizes::COLUMNS : 0;
        const Index index = plain ? Index(row % SLICE_ROWS) * Sizes::COLUMNS + column % Sizes::COLUMNS
                                  : Index(SLICE_ROWS) * Sizes::COLUMNS + (Sizes::LAST ? column : row % SLICE_ROWS);
        constexpr GradientStart start = gradient_start<Net>(L);
        const float* from = call.partials + start.first_partial + Index(slice) * workers * Sizes::SIZE + index;
        _Pragma("unroll 16")
        for (int worker = 0; worker < workers; ++worker) sum += from[Index(worker) * Sizes::SIZE];
        return true;
    }
    if constexpr (Net::NORM && L + 1 < Net::LAYERS) {
        const int  gain_column = parameter - at.gain, shift_column = parameter - at.shift;
        const bool gain = 0 <= gain_column && gain_column < rows, shift = 0 <= shift_column && shift_column < rows;
        if (gain || shift) {
            const int column = gain ? gain_column : Net::NORM_COLUMNS + shift_column;
            sum = sum_over_blocks<Net>(call, Net::LOSSES + Net::LOG_STDS + Net::bias_offset(L) + column);
            return true;
        }
    }
    if constexpr (L + 1 < Net::LAYERS) return sum_up<Net, L + 1>(call, parameter, sum);
    else if constexpr (Net::NUMBER + 1 < Net::NETS) return sum_up<typename Net::Next, 0>(call, parameter, sum);
    else return false;
}

// Sums the blocks' partial sums of the gradient and the loss, in a fixed order; with `accumulate`, adds them to the
// previous results.
template <class Shape, class Call> FN void reduce(const Call& call) {
    using First      = NetOf<Shape, 0>;
    using Last       = NetOf<Shape, Shape::NETS - 1>;
    const int column = block_number() * THREADS + thread_rank();
    float     sum    = 0;
    if (column < call.parameters) {
        const int  log_std_at = column - Shape::LOG_STD_AT;
        const bool log_std    = Shape::LOG_STDS > 0 && 0 <= log_std_at && log_std_at < Shape::LOG_STDS;
        if (log_std) sum = sum_over_blocks<First>(call, Shape::LOSSES + log_std_at);
        else sum_up<First, 0>(call, column, sum);
        if (call.accumulate) sum += call.gradient[column];
        if (log_std && call.last) {
            // Log standard deviations are clipped; beyond a bound only gradients that lead back inside count.
            const float value = call.flat[column];
            if ((value < LOG_STD_LOW && sum > 0) || (value > LOG_STD_HIGH && sum < 0)) sum = 0;
        }
        call.gradient[column] = sum;
    } else if (column < call.parameters + Shape::LOSSES) {
        const int s = column - call.parameters;
        sum         = s == VALUE_LOSS ? sum_over_blocks<Last>(call, s) : sum_over_blocks<First>(call, s);
        call.totals[s] = (call.accumulate ? call.totals[s] : 0.0f) + sum;
    }
}

// --- packed weights: pieces whose lines have LINE bytes, in the order of the stream's steps ---

// Packs the weights of step STEP of the weight stream (layers forward, then backward), of all later steps, and of later
// nets: elements `first`, `first` + `every`, and so on.
template <class Net, int STEP, class Call> FN void pack_step(const Call& call, int first, int every) {
    constexpr int l = Net::layer_of(STEP), lines = Net::lines_of(STEP);
    constexpr int depths = pieces_of(Net::depth_of(STEP)) * LINE_ELEMENTS;
    constexpr int columns = l == 0 ? Net::layer(0).columns : Net::in_of(l);
    Stored* const to = reinterpret_cast<Stored*>(call.packed + Net::packed_offset(STEP));
    for (int e = first; e < lines * depths; e += every) {
        const int  line = e / depths, depth = e % depths;
        const int  out = STEP < Net::LAYERS ? line : depth;
        const int  in  = STEP < Net::LAYERS ? depth : line + (l == 0 ? Net::FIRST_GRAD_INPUT : 0);
        const bool  in_range = out < Net::out_of(l) && in < Net::in_of(l);
        const float weight   = in_range ? call.flat[Net::layer(l).weight + out * columns + in] : 0.0f;
        const int   at = (depth / LINE_ELEMENTS * lines + line) * LINE_ELEMENTS + swizzled(line, depth % LINE_ELEMENTS);
        to[at] = Arithmetic::stored(weight);
    }
    if constexpr (STEP + 1 < Net::STEPS) pack_step<Net, STEP + 1>(call, first, every);
    else if constexpr (Net::NUMBER + 1 < Net::NETS) pack_step<typename Net::Next, 0>(call, first, every);
}

template <class Shape, class Call> FN void pack(const Call& call) {
    pack_step<NetOf<Shape, 0>, 0>(call, block_number() * THREADS + thread_rank(), block_count() * THREADS);
}

template <class S> constexpr u64 BLOCK_BYTES = 1024 + (RESIDENT<S> ? sizeof(ResidentMemory<S>) : sizeof(WideMemory<S>));
