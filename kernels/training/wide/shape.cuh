// The shape of wide perceptrons, and what follows from it: how weights stream, what updates keep, how gradients are cut.
//
// A Shape is generated, behind these headers: FEATURES, LAYERS (with that of the outputs), NETS, and layer(net, l), where
// a layer's parameters lie; LOSSES (sums of the loss), LOG_STDS and LOG_STD_AT; NORM (hidden sums are normalised, row by
// row); SHARED_TRUNK (the first net has the value beside the means; otherwise net 1 is the critic); FUNCTIONS (one or two
// functions of the same inputs), of which the gradient by BY_INPUTS features from INPUTS_FROM on is wanted; PROCESSORS of
// the device. All else is worked out here, once: Python reads it through SIZES of wide_programs.py.

struct Linear { int weight, bias, rows, columns, gain, shift; };  // rows of the weights, padding included, are outputs

constexpr int GROUPS = WARPS / 4, GROUP_TILE = GROUPS * GROUP_ROWS;
constexpr int PIECE = 128, EACH = PIECE / int(sizeof(Stored));  // of activations
constexpr int CHUNK = 256;                                      // features that are multiplied at a time

// Weights come in pieces of lines of LINE bytes; a stage has as many pieces as its bytes allow. (Where rows take much of
// shared memory, more and smaller stages find room beside them.)
constexpr int LINE = sizeof(Stored) == 2 ? 128 : 64, LINE_EACH = LINE / int(sizeof(Stored)), STAGE = 256 * LINE;
constexpr int MOST_RING = 128 * 1024;  // as much as a layer of 256 x 256 in bf16 has
FN constexpr int pieces_of(int depth) { return (depth + LINE_EACH - 1) / LINE_EACH; }
FN constexpr int pieces_of_stage(int lines) {  // (a chunk of inputs ends with a stage)
    int pieces = 1;
    while (2 * pieces * lines * LINE <= STAGE && 2 * pieces * LINE_EACH <= CHUNK) pieces *= 2;
    return pieces;
}

constexpr int SLICE = 2 * GROUP_ROWS;  // rows of a layer's gradient that a block has

// One of a shape's nets.
template <class S, int NET> struct NetOf : S {
    using Shape                      = S;
    using Next                       = NetOf<S, NET + 1>;
    static constexpr int  NUMBER     = NET;
    static constexpr int  LAST       = S::LAYERS - 1;
    static constexpr bool HAS_POLICY = !S::FUNCTIONS && NET == 0, HAS_VALUE = !S::FUNCTIONS && (S::SHARED_TRUNK || NET == 1);
    static constexpr int  MEANS = PARAMETERS - S::LOG_STDS, VALUE_AT = HAS_POLICY ? MEANS : 0;
    static constexpr int  INPUTS = padded(S::FEATURES, DEPTH);

    FN static constexpr Linear layer(int l) { return S::layer(NET, l); }
    FN static constexpr int    out_of(int l) {  // without what pads weights
        return l < LAST ? layer(l).rows : S::FUNCTIONS || NET == 0 ? MEANS + int(HAS_VALUE) : 1;
    }
    FN static constexpr int in_of(int l)   { return l == 0 ? S::FEATURES : out_of(l - 1); }
    FN static constexpr int outs_of(int l) { return padded(out_of(l), 16); }
    FN static constexpr int bias_of(int l) {  // where a layer's lie
        int sum = 0;
        for (int k = 0; k < l; ++k) sum += outs_of(k);
        return sum;
    }
    static constexpr int NORMED = S::NORM ? bias_of(LAST) : 0;

    // On the way forth all layers are steps, then back those from the last to the second, or to the first where the
    // gradient by inputs is wanted.
    static constexpr int STEPS_FORTH = S::LAYERS, STEPS = 2 * S::LAYERS - (S::BY_INPUTS > 0 ? 0 : 1);
    FN static constexpr int layer_of(int step) { return step < S::LAYERS ? step : 2 * S::LAYERS - 1 - step; }
    FN static constexpr int lines_of(int step) {
        const int l = layer_of(step);
        return step < S::LAYERS ? outs_of(l) : l == 0 ? padded(S::BY_INPUTS, 16) : in_of(l);
    }
    FN static constexpr int depth_of(int step) {
        return step < S::LAYERS ? padded(in_of(layer_of(step)), DEPTH) : outs_of(layer_of(step));
    }
    FN static constexpr u32 packed_bytes(int steps) {  // of the weights of so many
        u32 bytes = 0;
        for (int s = 0; s < steps; ++s) bytes += u32(pieces_of(depth_of(s)) * lines_of(s) * LINE);
        return bytes;
    }
    FN static constexpr int pieces() {  // of all steps' weights
        int sum = 0;
        for (int s = 0; s < STEPS; ++s) sum += pieces_of(depth_of(s));
        return sum;
    }
    FN static constexpr u32 packed_place(int step) {
        if constexpr (NET > 0) return NetOf<S, 0>::packed_bytes(STEPS) + packed_bytes(step);
        else return packed_bytes(step);
    }

    // What updates keep of each 64 samples: the inputs, with a line of ones, the activations of hidden layers, the
    // derivatives by those layers' sums, and those by the outputs. Until the way back, the place of derivatives has what
    // they need: the slopes of activations whose value does not tell them, or what NORM made of sums. Inputs are cut into
    // parts, none longer than a product.
    static constexpr int INPUT_PARTS = (padded(S::FEATURES + 1, 16) + 255) / 256;
    static constexpr int INPUT_PART  = padded((S::FEATURES + INPUT_PARTS) / INPUT_PARTS, 16);
    FN static constexpr int kept_lines(int number) {
        return number == 0                 ? INPUT_PARTS * INPUT_PART
               : number < S::LAYERS        ? out_of(number - 1)
               : number < 2 * S::LAYERS - 1 ? out_of(number - S::LAYERS)
                                           : outs_of(LAST);
    }
    FN static constexpr u64 kept_bytes(int numbers) {
        u64 bytes = 0;
        for (int number = 0; number < numbers; ++number) bytes += u64(kept_lines(number)) * GROUP_ROWS * sizeof(Stored);
        return bytes;
    }
    FN static constexpr u64 kept_place(int number) {
        if constexpr (NET > 0) return NetOf<S, 0>::kept_bytes(2 * S::LAYERS) + kept_bytes(number);
        else return kept_bytes(number);
    }

    // Hidden layers side by side that are equally wide share their instructions, which are many: alike_until(l) is one
    // past the last that is as wide as `l`, and alike_from(l) the first.
    FN static constexpr int alike_until(int l) {
        int end = l + 1;
        while (end < LAST && out_of(end) == out_of(l)) ++end;
        return end;
    }
    FN static constexpr int alike_from(int l) {
        while (l > 0 && out_of(l - 1) == out_of(l)) --l;
        return l;
    }

    // A block has 128 rows of one layer's gradient. Of hidden layers the rows are outputs, and of the first layer one part
    // of the inputs is columns; of the last layer, which is narrow, the rows are inputs.
    FN static constexpr int gradient_rows(int l)    { return l == LAST ? in_of(l) : out_of(l); }
    FN static constexpr int gradient_columns(int l) { return l == LAST ? outs_of(l) : l == 0 ? INPUT_PART : in_of(l); }
    FN static constexpr int slices_of(int l) { return (gradient_rows(l) + SLICE - 1) / SLICE * (l == 0 ? INPUT_PARTS : 1); }
    FN static constexpr int partial_size(int l) {  // of a block's part of the sums, with those of biases
        return SLICE * gradient_columns(l) + (l == LAST ? gradient_columns(l) : SLICE);
    }
};

template <class Net, class Call> FN unsigned char* kept_of(const Call& call, int number, Index unit, int ahead = 0) {
    const u64 before = Net::kept_place(number);
    const u64 each   = u64(Net::kept_lines(number)) * GROUP_ROWS * sizeof(Stored);  // the same for those `ahead`
    return const_cast<unsigned char*>(call.kept) + (before + each * u64(ahead)) * u64(call.units) + each * u64(unit);
}

// How many blocks share the samples of each slice of a layer's gradient: by the lines that they read, and those that are
// left over go where most is to be read.
template <class S> struct Workers {
    int of[S::NETS][S::LAYERS] = {}, slices[S::NETS][S::LAYERS] = {}, lines[S::NETS][S::LAYERS] = {};

    FN constexpr Workers() {
        measure<0>();
        int all = 0;
        for (int n = 0; n < S::NETS * S::LAYERS; ++n) all += at(slices, n) * at(lines, n);
        for (int n = 0; n < S::NETS * S::LAYERS; ++n) at(of, n) = maximum(1, S::PROCESSORS * at(lines, n) / all);
        for (int most = 0; most >= 0;) {
            int left = S::PROCESSORS;
            for (int n = 0; n < S::NETS * S::LAYERS; ++n) left -= at(slices, n) * at(of, n);
            most = -1;
            for (int n = 0; n < S::NETS * S::LAYERS; ++n) {
                const bool more = most < 0 || at(lines, n) * at(of, most) > at(lines, most) * at(of, n);
                if (at(slices, n) <= left && more) most = n;
            }
            if (most >= 0) ++at(of, most);
        }
    }
    template <int NET> FN constexpr void measure() {
        using Net = NetOf<S, NET>;
        for (int l = 0; l < S::LAYERS; ++l) {
            slices[NET][l] = Net::slices_of(l);
            lines[NET][l]  = minimum(Net::gradient_rows(l), SLICE) + Net::gradient_columns(l);
        }
        if constexpr (NET + 1 < S::NETS) measure<NET + 1>();
    }
    FN static constexpr int& at(int (&table)[S::NETS][S::LAYERS], int n) { return table[n / S::LAYERS][n % S::LAYERS]; }
};
template <class Net> FN constexpr int workers_of(int l) {
    constexpr Workers<typename Net::Shape> workers;
    return workers.of[Net::NUMBER][l];
}

// Where a part of the gradient is found, and by how many blocks: workers_of(l) for each of its slices.
struct Found { int first_block; Index first; };
template <class Net> FN constexpr Found found_at(int l) {
    Found found = {0, 0};
    if constexpr (Net::NUMBER > 0) found = found_at<NetOf<typename Net::Shape, Net::NUMBER - 1>>(Net::LAYERS);
    for (int k = 0; k < l; ++k) {
        const int blocks = Net::slices_of(k) * workers_of<Net>(k);
        found = {found.first_block + blocks, found.first + Index(blocks) * Net::partial_size(k)};
    }
    return found;
}

// How the tensor cores are told of lines of 128 or 64 bytes from an address on. All but the address is known before.
template <int BYTES = PIECE> struct Lines {
    u32 low;
    FN explicit Lines(u32 address) : low(1u << 16 | (address & 0x3FFFF) / 16) {}
    FN void move(u32 bytes)      { low += bytes / 16; }
    FN u64  at(u32 bytes) const  { return u64((BYTES == 128 ? 1u : 2u) << 30 | 8 * BYTES / 16) << 32 | (low + bytes / 16); }
};
FN constexpr int within_line(int line, int depth) {  // where a depth lies, for reads to meet in no bank
    return depth ^ line * LINE / PIECE % (LINE / 16) * (16 / int(sizeof(Stored)));
}

// Where a number of a warpgroup's rows lies in shared memory.
FN constexpr u32 row_place(u32 row, u32 column) {
    const u32 line = column / u32(EACH) * u32(GROUP_ROWS) + row, within = column % u32(EACH) * u32(sizeof(Stored));
    return line * u32(PIECE) + (within ^ row % 8u * 16u);
}

// What lies in a block's shared memory.
template <class S> struct Layout {
    using First = NetOf<S, 0>;
    using Last  = NetOf<S, S::NETS - 1>;
    static constexpr int MOST_BIAS      = maximum(First::bias_of(S::LAYERS), Last::bias_of(S::LAYERS));
    static constexpr int STAGES_OF_TILE = maximum(First::pieces(), Last::pieces());  // the most that its weights take
    static constexpr u32 FORTH_BYTES    = maximum(First::packed_bytes(S::LAYERS), Last::packed_bytes(S::LAYERS));
    static constexpr int SUMS_AND_MORE  = maximum(SUMS, S::LOG_STDS);
    static constexpr int SUMS_OF_BLOCK  = maximum(1, S::LOSSES + S::LOG_STDS + 2 * First::NORMED);

    // Of a warpgroup's rows; a box's outputs lie before the derivatives by them.
    static constexpr u32 OUTPUTS_BYTES = u32(padded(4 * GROUP * (PARAMETERS | 1), 1024));
    FN static constexpr int widest() {
        int most = minimum(S::FEATURES, CHUNK);
        for (int l = 0; l < First::LAST; ++l) most = maximum(most, maximum(First::out_of(l), Last::out_of(l)));
        return most;
    }
    FN static constexpr u32 bytes_of_rows(int columns) {
        return u32(GROUP_ROWS * padded(columns * int(sizeof(Stored)), PIECE));
    }
    static constexpr u32 ROW_BYTES = maximum(bytes_of_rows(widest()),
        OUTPUTS_BYTES + bytes_of_rows(maximum(First::outs_of(First::LAST), Last::outs_of(First::LAST))));
};

template <class S> struct WideNumbers {
    static constexpr int NORMED = NetOf<S, 0>::NORMED, INPUTS = NetOf<S, 0>::INPUTS;
    alignas(16) float bias[Layout<S>::MOST_BIAS], gains[NORMED + 1], shifts[NORMED + 1];
    alignas(16) float mean[INPUTS], inverse[INPUTS];
    float values[GROUPS * GROUP], sums[WARPS][Layout<S>::SUMS_AND_MORE];
    struct { u32 from, bytes; } of_stage[Layout<S>::STAGES_OF_TILE];  // where its weights lie among the packed ones
    u32   zero;
};

constexpr int ASIDE_BYTES = 3 * 1024;  // what alignment, and a ring's gates, may take

// Rows, and a ring through which weights stream.
template <class S> constexpr int STAGES =
    minimum(MOST_RING, MOST_SHARED - ASIDE_BYTES - GROUPS * int(Layout<S>::ROW_BYTES) - int(sizeof(WideNumbers<S>))) / STAGE;
template <class S> struct WideRows {
    static_assert(STAGES<S> >= 2, "fewer stages do not work");
    alignas(1024) unsigned char rows[GROUPS][Layout<S>::ROW_BYTES];
    Ring<STAGES<S>, STAGE, GROUPS> ring;
};
template <class S> struct WideMemory : WideRows<S>, WideNumbers<S> {
    FN static WideMemory& of_block() { return *reinterpret_cast<WideMemory*>(memory_of_block(1024)); }
};

// All weights of a net, where they find room; rows are in registers then, which more features would exceed. (A box's
// outputs go to the rows' memory.)
template <class S> struct ResidentWeights { alignas(1024) unsigned char weights[Layout<S>::FORTH_BYTES]; };
template <class S> struct ResidentMemory : ResidentWeights<S>, WideNumbers<S> {
    u64 gate;  // through which they come
    FN static ResidentMemory& of_block() { return *reinterpret_cast<ResidentMemory*>(memory_of_block(1024)); }
};
template <class S> constexpr bool RESIDENT = sizeof(Stored) == 2 && S::FEATURES <= 128 && DISCRETE && !S::FUNCTIONS &&
                                             sizeof(ResidentMemory<S>) + 2048 <= MOST_SHARED;

// --- the stream ---

// The weights of all tiles of a block, one after another.
template <class Net, int STEPS_OF_TILE> struct Weights {
    using Of = Net;
    WideMemory<typename Net::Shape>& memory;
    const unsigned char*             packed;
    bool                             last;  // whether tiles take the last step, too
    u32                              end;   // stages of all tiles

    FN static constexpr int stages_of(int step, int most = 1 << 20) {  // so deep
        const int each = pieces_of_stage(Net::lines_of(step));
        return (pieces_of(minimum(Net::depth_of(step), most)) + each - 1) / each;
    }
    // Whether warpgroups multiply one after another, each while the other makes rows of what its products found: in bf16,
    // if the ring holds all weights of a product, for the first takes them before the second does.
    FN static constexpr bool in_turn() {
        bool found = sizeof(Stored) == 2;
        for (int step = 0; step < STEPS_OF_TILE; ++step) found = found && stages_of(step, CHUNK) <= STAGES<typename Net::Shape>;
        return found;
    }
    FN static constexpr u32 stages() {
        int sum = 0;
        for (int step = 0; step < STEPS_OF_TILE; ++step) sum += stages_of(step);
        return u32(sum);
    }
    FN static constexpr u32 of_tile(bool last) { return stages() - (last ? 0 : u32(stages_of(STEPS_OF_TILE - 1))); }

    // By all threads of the block.
    FN void begin() const {
        static_assert(stages() <= Layout<typename Net::Shape>::STAGES_OF_TILE);
        for (u32 number = u32(thread_rank()); number < stages(); number += THREADS) find(number);
        block_barrier();
        if (thread_rank() == 0) memory.ring.begin(*this);
    }
    FN void operator()(u32 number) const {
        if (number >= end) return;
        const auto& stage = memory.of_stage[last ? number % of_tile(true) : number % of_tile(false)];  // by constants
        memory.ring.open(number, stage.bytes);
        memory.ring.copy(number, 0, packed + stage.from, stage.bytes);
    }
    FN void find(u32 number) const {
        u32 stage = number, from = Net::packed_place(0);
        for (int step = 0; step < STEPS_OF_TILE; ++step) {
            const u32 own = u32(stages_of(step)), of_piece = u32(Net::lines_of(step) * LINE);
            const u32 all = u32(pieces_of(Net::depth_of(step))) * of_piece;
            if (stage < own) {
                const u32 first = stage * u32(pieces_of_stage(Net::lines_of(step))) * of_piece;
                const u32 bytes = minimum(u32(pieces_of_stage(Net::lines_of(step))) * of_piece, all - first);
                memory.of_stage[number] = {from + first, bytes};
                return;
            }
            stage -= own;
            from += all;
        }
    }
};

// How many tiles one of several workers takes.
FN u32 turns_of(int worker, int workers, Index tiles) { return u32(tiles - worker + workers - 1) / u32(workers); }

// A network's biases, and what its inputs are normalised by.
template <class Net, class Call>
FN void load_numbers(WideNumbers<typename Net::Shape>& memory, const Call& call, const Scale& scale) {
    for (int l = 0; l < Net::LAYERS; ++l) {
        for (int j = thread_rank(); j < Net::outs_of(l); j += THREADS) {
            memory.bias[Net::bias_of(l) + j] = j < Net::out_of(l) ? call.flat[Net::layer(l).bias + j] : 0.0f;
            if (Net::NORM && l + 1 < Net::LAYERS) {
                memory.gains[Net::bias_of(l) + j]  = call.flat[Net::layer(l).gain + j];
                memory.shifts[Net::bias_of(l) + j] = call.flat[Net::layer(l).shift + j];
            }
        }
    }
    for (int j = thread_rank(); j < Net::INPUTS; j += THREADS) {
        const bool scaled = scale.mean != nullptr && j < Net::FEATURES;
        memory.mean[j]    = scaled ? scale.mean[j] : 0.0f;
        memory.inverse[j] = scaled ? scale.inverse[j] : 1.0f;
    }
}

// Begins with a network: with those, and the ring for so many tiles, which take all steps or all but the last.
template <class Net, int STEPS_OF_TILE, class Call>
FN Weights<Net, STEPS_OF_TILE> begin_network(const Call& call, const Scale& scale, u32 tiles, bool last = true) {
    auto& memory = WideMemory<typename Net::Shape>::of_block();
    load_numbers<Net>(memory, call, scale);
    using Streamed         = Weights<Net, STEPS_OF_TILE>;
    const Streamed weights = {memory, call.packed, last, Streamed::of_tile(last) * tiles};
    if (thread_rank() == 0) memory.zero = 0;
    weights.begin();
    block_barrier();
    return weights;
}
