// The shape of wide perceptrons, and sizes that follow from it: stages of streamed weights, saved tiles, gradient
// slices.
//
// A Shape is generated after these headers: FEATURES, LAYERS (the output layer included), NETS, and layer(net, l), the
// offsets of a layer's parameters; LOSSES (sums of the loss), LOG_STDS and LOG_STD_AT; NORM (layer normalisation of
// hidden pre-activations); SHARED_TRUNK (the first net outputs the value next to the means; otherwise net 1 is the
// critic); FUNCTIONS (one or two functions of the same inputs), with gradients with respect to GRAD_INPUTS features
// from FIRST_GRAD_INPUT on; PROCESSORS of the device. All sizes are computed here; Python reads them through _SIZES of
// wide_programs.py.

struct Linear { int weight, bias, rows, columns, gain, shift; };  // rows of the weights are outputs, padding included

constexpr int GROUPS = WARPS / 4, GROUP_TILE = GROUPS * GROUP_ROWS;
constexpr int PIECE = 128, PIECE_ELEMENTS = PIECE / int(sizeof(Stored));  // of activations, per line
constexpr int CHUNK = 256;                                                // input features per product

// Weights are streamed in pieces: a line of LINE bytes, along the depth, for each column of the product. A stage has as
// many pieces as fit in STAGE_BYTES: small, so that several stages fit in shared memory next to long rows.
constexpr int LINE = sizeof(Stored) == 2 ? 128 : 64, LINE_ELEMENTS = LINE / int(sizeof(Stored));
constexpr int STAGE_BYTES = 256 * LINE, MAX_RING_BYTES = 128 * 1024;  // the weights of a 256 x 256 layer in bf16
FN constexpr int pieces_of(int depth) { return (depth + LINE_ELEMENTS - 1) / LINE_ELEMENTS; }
// Pieces of a stage whose lines are `lines`: a power of two, so that a chunk of inputs ends at the end of a stage.
FN constexpr int pieces_of_stage(int lines) {
    int pieces = 1;
    while (2 * pieces * lines * LINE <= STAGE_BYTES && 2 * pieces * LINE_ELEMENTS <= CHUNK) pieces *= 2;
    return pieces;
}

constexpr int SLICE_ROWS = 2 * GROUP_ROWS;  // rows of a layer's gradient per block

// Sizes of a shape's net number NET.
template <class S, int NET> struct NetOf : S {
    using Shape                      = S;
    using Next                       = NetOf<S, NET + 1>;
    static constexpr int  NUMBER     = NET;
    static constexpr int  LAST       = S::LAYERS - 1;
    static constexpr bool HAS_POLICY = !S::FUNCTIONS && NET == 0;
    static constexpr bool HAS_VALUE  = !S::FUNCTIONS && (S::SHARED_TRUNK || NET == 1);
    static constexpr int  MEANS = PARAMETERS - S::LOG_STDS, VALUE_COLUMN = HAS_POLICY ? MEANS : 0;
    static constexpr int  INPUTS = padded(S::FEATURES, DEPTH);

    FN static constexpr Linear layer(int l) { return S::layer(NET, l); }
    FN static constexpr int    out_of(int l) {  // without padding
        return l < LAST ? layer(l).rows : S::FUNCTIONS || NET == 0 ? MEANS + int(HAS_VALUE) : 1;
    }
    FN static constexpr int in_of(int l)   { return l == 0 ? S::FEATURES : out_of(l - 1); }
    FN static constexpr int padded_outs(int l) { return padded(out_of(l), 16); }
    FN static constexpr int bias_offset(int l) {  // offset of a layer's biases in shared memory
        int sum = 0;
        for (int k = 0; k < l; ++k) sum += padded_outs(k);
        return sum;
    }
    static constexpr int NORM_COLUMNS = S::NORM ? bias_offset(LAST) : 0;

    // Steps of the weight stream: all layers forward, then backward from the last layer to the second, or to the first
    // if gradients of inputs are needed.
    static constexpr int FORWARD_STEPS = S::LAYERS, STEPS = 2 * S::LAYERS - (S::GRAD_INPUTS > 0 ? 0 : 1);
    FN static constexpr int layer_of(int step) { return step < S::LAYERS ? step : 2 * S::LAYERS - 1 - step; }
    FN static constexpr int lines_of(int step) {
        const int l = layer_of(step);
        return step < S::LAYERS ? padded_outs(l) : l == 0 ? padded(S::GRAD_INPUTS, 16) : in_of(l);
    }
    FN static constexpr int depth_of(int step) {
        return step < S::LAYERS ? padded(in_of(layer_of(step)), DEPTH) : padded_outs(layer_of(step));
    }
    FN static constexpr u32 packed_bytes(int steps) {  // of the first steps' weights
        u32 bytes = 0;
        for (int s = 0; s < steps; ++s) bytes += u32(pieces_of(depth_of(s)) * lines_of(s) * LINE);
        return bytes;
    }
    FN static constexpr int pieces() {  // of all steps' weights
        int sum = 0;
        for (int s = 0; s < STEPS; ++s) sum += pieces_of(depth_of(s));
        return sum;
    }
    FN static constexpr u32 packed_offset(int step) {
        if constexpr (NET > 0) return NetOf<S, 0>::packed_bytes(STEPS) + packed_bytes(step);
        else return packed_bytes(step);
    }

    // Tiles saved for the gradient, for each unit of 64 samples: the inputs, with a line of ones; the activations of
    // hidden layers; the gradients of these layers' pre-activations; the gradients of the outputs. Until the backward
    // pass, the tiles of hidden gradients hold its inputs: slopes that do not follow from the activations, or
    // normalised pre-activations. Inputs are cut into parts of at most 256 columns, the maximum of a product.
    static constexpr int INPUT_PARTS = (padded(S::FEATURES + 1, 16) + 255) / 256;
    static constexpr int INPUT_PART  = padded((S::FEATURES + INPUT_PARTS) / INPUT_PARTS, 16);
    FN static constexpr int saved_lines(int number) {
        return number == 0                 ? INPUT_PARTS * INPUT_PART
               : number < S::LAYERS        ? out_of(number - 1)
               : number < 2 * S::LAYERS - 1 ? out_of(number - S::LAYERS)
                                           : padded_outs(LAST);
    }
    FN static constexpr u64 saved_bytes(int count) {
        u64 bytes = 0;
        for (int number = 0; number < count; ++number) bytes += u64(saved_lines(number)) * GROUP_ROWS * sizeof(Stored);
        return bytes;
    }
    FN static constexpr u64 saved_offset(int number) {
        if constexpr (NET > 0) return NetOf<S, 0>::saved_bytes(2 * S::LAYERS) + saved_bytes(number);
        else return saved_bytes(number);
    }

    // Consecutive hidden layers of the same width run the same code, in a loop, as it is long: same_width_end(l) is one
    // past the last such layer from `l` on, same_width_begin(l) the first one.
    FN static constexpr int same_width_end(int l) {
        int end = l + 1;
        while (end < LAST && out_of(end) == out_of(l)) ++end;
        return end;
    }
    FN static constexpr int same_width_begin(int l) {
        while (l > 0 && out_of(l - 1) == out_of(l)) --l;
        return l;
    }

    // A block computes 128 rows of one layer's gradient. Rows of hidden layers are outputs, and the first layer's
    // columns are one part of the inputs; rows of the narrow last layer are inputs.
    FN static constexpr int gradient_rows(int l) { return l == LAST ? in_of(l) : out_of(l); }
    FN static constexpr int gradient_columns(int l) {
        return l == LAST ? padded_outs(l) : l == 0 ? INPUT_PART : in_of(l);
    }
    FN static constexpr int slices_of(int l) {
        return (gradient_rows(l) + SLICE_ROWS - 1) / SLICE_ROWS * (l == 0 ? INPUT_PARTS : 1);
    }
    FN static constexpr int partial_size(int l) {  // floats of a block's partial sums, biases included
        return SLICE_ROWS * gradient_columns(l) + (l == LAST ? gradient_columns(l) : SLICE_ROWS);
    }
};

// The address of a unit's saved tile `number` + `ahead`; the tiles between have the same size.
template <class Net, class Call> FN unsigned char* saved_unit(const Call& call, int number, Index unit, int ahead = 0) {
    const u64 before = Net::saved_offset(number);
    const u64 each   = u64(Net::saved_lines(number)) * GROUP_ROWS * sizeof(Stored);  // the same for the layers `ahead`
    return const_cast<unsigned char*>(call.saved) + (before + each * u64(ahead)) * u64(call.units) + each * u64(unit);
}

// The number of blocks that share the samples of each slice of a layer's gradient: in proportion to the lines that they
// read; remaining blocks go where a block reads most.
template <class S> struct Workers {
    int count[S::NETS][S::LAYERS] = {}, slices[S::NETS][S::LAYERS] = {}, lines[S::NETS][S::LAYERS] = {};

    FN constexpr Workers() {
        set_sizes<0>();
        int total = 0;
        for (int n = 0; n < S::NETS * S::LAYERS; ++n) total += at(slices, n) * at(lines, n);
        for (int n = 0; n < S::NETS * S::LAYERS; ++n) at(count, n) = maximum(1, S::PROCESSORS * at(lines, n) / total);
        for (int busiest = 0; busiest >= 0;) {
            int left = S::PROCESSORS;
            for (int n = 0; n < S::NETS * S::LAYERS; ++n) left -= at(slices, n) * at(count, n);
            busiest = -1;
            for (int n = 0; n < S::NETS * S::LAYERS; ++n) {
                const bool more = busiest < 0 || at(lines, n) * at(count, busiest) > at(lines, busiest) * at(count, n);
                if (at(slices, n) <= left && more) busiest = n;
            }
            if (busiest >= 0) ++at(count, busiest);
        }
    }
    template <int NET> FN constexpr void set_sizes() {
        using Net = NetOf<S, NET>;
        for (int l = 0; l < S::LAYERS; ++l) {
            slices[NET][l] = Net::slices_of(l);
            lines[NET][l]  = minimum(Net::gradient_rows(l), SLICE_ROWS) + Net::gradient_columns(l);
        }
        if constexpr (NET + 1 < S::NETS) set_sizes<NET + 1>();
    }
    FN static constexpr int& at(int (&table)[S::NETS][S::LAYERS], int n) { return table[n / S::LAYERS][n % S::LAYERS]; }
};
template <class Net> FN constexpr int workers_of(int l) {
    constexpr Workers<typename Net::Shape> workers;
    return workers.count[Net::NUMBER][l];
}

struct GradientStart { int first_block; Index first_partial; };
// The first block of a layer's gradient, and the offset of its partial sums; each slice has workers_of(l) blocks.
template <class Net> FN constexpr GradientStart gradient_start(int l) {
    GradientStart start = {0, 0};
    if constexpr (Net::NUMBER > 0) start = gradient_start<NetOf<typename Net::Shape, Net::NUMBER - 1>>(Net::LAYERS);
    for (int k = 0; k < l; ++k) {
        const int blocks = Net::slices_of(k) * workers_of<Net>(k);
        start = {start.first_block + blocks, start.first_partial + Index(blocks) * Net::partial_size(k)};
    }
    return start;
}

// The matrix descriptor of lines of 128 or 64 bytes at an address; all but the address are compile-time constants.
template <int BYTES = PIECE> struct LineDescriptor {
    u32 low;
    FN explicit LineDescriptor(u32 address) : low(1u << 16 | (address & 0x3FFFF) / 16) {}
    FN void move(u32 bytes)      { low += bytes / 16; }
    FN u64  at(u32 bytes) const {
        return u64((BYTES == 128 ? 1u : 2u) << 30 | 8 * BYTES / 16) << 32 | (low + bytes / 16);
    }
};
FN constexpr int swizzled(int line, int depth) {  // the swizzled position of a depth, without bank conflicts
    return depth ^ line * LINE / PIECE % (LINE / 16) * (16 / int(sizeof(Stored)));
}

// The offset in bytes of an element of a warpgroup's rows in shared memory.
FN constexpr u32 row_offset(u32 row, u32 column) {
    const u32 line   = column / u32(PIECE_ELEMENTS) * u32(GROUP_ROWS) + row;
    const u32 within = column % u32(PIECE_ELEMENTS) * u32(sizeof(Stored));
    return line * u32(PIECE) + (within ^ row % 8u * 16u);
}

// Sizes of a block's shared memory.
template <class S> struct Layout {
    using First = NetOf<S, 0>;
    using Last  = NetOf<S, S::NETS - 1>;
    static constexpr int MAX_BIASES      = maximum(First::bias_offset(S::LAYERS), Last::bias_offset(S::LAYERS));
    static constexpr int MAX_TILE_STAGES = maximum(First::pieces(), Last::pieces());  // maximum over nets
    static constexpr u32 FORWARD_BYTES   = maximum(First::packed_bytes(S::LAYERS), Last::packed_bytes(S::LAYERS));
    static constexpr int MAX_SUMS        = maximum(SUMS, S::LOG_STDS);
    static constexpr int BLOCK_SUMS      = maximum(1, S::LOSSES + S::LOG_STDS + 2 * First::NORM_COLUMNS);

    // Of a warpgroup's rows; a box's outputs come before their gradients.
    static constexpr u32 OUTPUTS_BYTES = u32(padded(4 * GROUP * (PARAMETERS | 1), 1024));
    FN static constexpr int max_columns() {
        int widest = minimum(S::FEATURES, CHUNK);
        for (int l = 0; l < First::LAST; ++l) widest = maximum(widest, maximum(First::out_of(l), Last::out_of(l)));
        return widest;
    }
    FN static constexpr u32 bytes_of_rows(int columns) {
        return u32(GROUP_ROWS * padded(columns * int(sizeof(Stored)), PIECE));
    }
    static constexpr u32 ROW_BYTES = maximum(bytes_of_rows(max_columns()),
        OUTPUTS_BYTES + bytes_of_rows(maximum(First::padded_outs(First::LAST), Last::padded_outs(First::LAST))));
};

template <class S> struct WideVectors {
    static constexpr int NORM_COLUMNS = NetOf<S, 0>::NORM_COLUMNS, INPUTS = NetOf<S, 0>::INPUTS;
    alignas(16) float bias[Layout<S>::MAX_BIASES], gains[NORM_COLUMNS + 1], shifts[NORM_COLUMNS + 1];
    alignas(16) float mean[INPUTS], inverse[INPUTS];
    float values[GROUPS * GROUP], sums[WARPS][Layout<S>::MAX_SUMS];
    struct { u32 from, bytes; } stage_sources[Layout<S>::MAX_TILE_STAGES];  // a stage's part of the packed weights
    u32   zero;
};

constexpr int MARGIN_BYTES = 3 * 1024;  // for alignment and the ring's mbarriers

template <class S> constexpr int STAGES =
    minimum(MAX_RING_BYTES, MAX_SHARED_BYTES - MARGIN_BYTES - GROUPS * int(Layout<S>::ROW_BYTES) -
                                int(sizeof(WideVectors<S>))) / STAGE_BYTES;
template <class S> struct WideRows {
    static_assert(STAGES<S> >= 2, "the ring needs two stages");
    alignas(1024) unsigned char rows[GROUPS][Layout<S>::ROW_BYTES];
    Ring<STAGES<S>, STAGE_BYTES, GROUPS> ring;
};
template <class S> struct WideMemory : WideRows<S>, WideVectors<S> {
    FN static WideMemory& of_block() { return *reinterpret_cast<WideMemory*>(aligned_shared_memory(1024)); }
};

// All weights of a net, if they fit; rows are then in registers, which limits the features. (A box's outputs would need
// the rows' memory.)
template <class S> struct ResidentWeights { alignas(1024) unsigned char weights[Layout<S>::FORWARD_BYTES]; };
template <class S> struct ResidentMemory : ResidentWeights<S>, WideVectors<S> {
    u64 mbarrier;  // of the copy of the weights
    FN static ResidentMemory& of_block() { return *reinterpret_cast<ResidentMemory*>(aligned_shared_memory(1024)); }
};
template <class S> constexpr bool RESIDENT = sizeof(Stored) == 2 && S::FEATURES <= 128 && DISCRETE && !S::FUNCTIONS &&
                                             sizeof(ResidentMemory<S>) + 2048 <= MAX_SHARED_BYTES;

// Streams the weights of all steps, again for each tile of a block.
template <class Net, int STEPS_OF_TILE> struct WeightStream {
    using NetType = Net;
    WideMemory<typename Net::Shape>& memory;
    const unsigned char*             packed;
    bool                             with_last;  // whether the stream includes the last step
    u32                              end;        // stages in total

    FN static constexpr int stages_of(int step, int limit = 1 << 20) {  // of at most this depth
        const int pieces = pieces_of_stage(Net::lines_of(step));
        return (pieces_of(minimum(Net::depth_of(step), limit)) + pieces - 1) / pieces;
    }
    // Whether warpgroups alternate between products and activations: in bf16, if the ring holds all weights of a
    // product, because the first warpgroup reads them before the second does.
    FN static constexpr bool takes_turns() {
        bool fits = sizeof(Stored) == 2;
        for (int step = 0; step < STEPS_OF_TILE; ++step) {
            fits = fits && stages_of(step, CHUNK) <= STAGES<typename Net::Shape>;
        }
        return fits;
    }
    FN static constexpr u32 stages() {
        int sum = 0;
        for (int step = 0; step < STEPS_OF_TILE; ++step) sum += stages_of(step);
        return u32(sum);
    }
    FN static constexpr u32 stages_per_tile(bool with_last) {
        return stages() - (with_last ? 0 : u32(stages_of(STEPS_OF_TILE - 1)));
    }

    // Starts the stream. All threads of the block call it.
    FN void start() const {
        static_assert(stages() <= Layout<typename Net::Shape>::MAX_TILE_STAGES);
        for (u32 number = u32(thread_rank()); number < stages(); number += THREADS) describe_stage(number);
        block_barrier();
        if (thread_rank() == 0) memory.ring.start(*this);
    }
    FN void operator()(u32 number) const {
        if (number >= end) return;
        // two expressions, so that both divisors are constants
        const auto& stage =
            memory.stage_sources[with_last ? number % stages_per_tile(true) : number % stages_per_tile(false)];
        memory.ring.open(number, stage.bytes);
        memory.ring.copy(number, 0, packed + stage.from, stage.bytes);
    }
    FN void describe_stage(u32 number) const {
        u32 stage = number, from = Net::packed_offset(0);
        for (int step = 0; step < STEPS_OF_TILE; ++step) {
            const u32 count = u32(stages_of(step)), piece_bytes = u32(Net::lines_of(step) * LINE);
            const u32 step_bytes = u32(pieces_of(Net::depth_of(step))) * piece_bytes;
            if (stage < count) {
                const u32 first = stage * u32(pieces_of_stage(Net::lines_of(step))) * piece_bytes;
                const u32 bytes = minimum(u32(pieces_of_stage(Net::lines_of(step))) * piece_bytes, step_bytes - first);
                memory.stage_sources[number] = {from + first, bytes};
                return;
            }
            stage -= count;
            from += step_bytes;
        }
    }
};

FN u32 tiles_of_worker(int worker, int workers, Index tiles) {
    return u32(tiles - worker + workers - 1) / u32(workers);
}

// Loads a network's biases, gains and shifts, and the means and scales of its inputs, to shared memory.
template <class Net, class Call>
FN void load_vectors(WideVectors<typename Net::Shape>& memory, const Call& call, const Scale& scale) {
    for (int l = 0; l < Net::LAYERS; ++l) {
        for (int j = thread_rank(); j < Net::padded_outs(l); j += THREADS) {
            memory.bias[Net::bias_offset(l) + j] = j < Net::out_of(l) ? call.flat[Net::layer(l).bias + j] : 0.0f;
            if (Net::NORM && l + 1 < Net::LAYERS) {
                memory.gains[Net::bias_offset(l) + j]  = call.flat[Net::layer(l).gain + j];
                memory.shifts[Net::bias_offset(l) + j] = call.flat[Net::layer(l).shift + j];
            }
        }
    }
    for (int j = thread_rank(); j < Net::INPUTS; j += THREADS) {
        const bool scaled = scale.mean != nullptr && j < Net::FEATURES;
        memory.mean[j]    = scaled ? scale.mean[j] : 0.0f;
        memory.inverse[j] = scaled ? scale.inverse[j] : 1.0f;
    }
}

// Loads a network's biases, norms and input scales, and starts to stream its weights for `tiles` tiles; `with_last`:
// the last step's too.
template <class Net, int STEPS_OF_TILE, class Call>
FN WeightStream<Net, STEPS_OF_TILE> start_network(const Call& call, const Scale& scale, u32 tiles,
                                                  bool with_last = true) {
    auto& memory = WideMemory<typename Net::Shape>::of_block();
    load_vectors<Net>(memory, call, scale);
    using Streamed         = WeightStream<Net, STEPS_OF_TILE>;
    const Streamed weights = {memory, call.packed, with_last, Streamed::stages_per_tile(with_last) * tiles};
    if (thread_rank() == 0) memory.zero = 0;
    weights.start();
    block_barrier();
    return weights;
}
