// Perceptrons of layers up to 256 wide, on Hopper: a warpgroup takes 64 rows through all layers.
//
// Rows of activations lie in shared memory, where they are the next product's left factor. The weights do not fit beside
// them: they stream through a ring, packed by pack.cuh in the order in which they are used, forth through all
// layers and, for updates, back. More than CHUNK features come in chunks. (Where all weights do find room, in
// resident.cuh, no ring is needed, and rows stay in registers.)
//
// Generated before it: FEATURES, COLUMNS_1 (of the first layer's weights), LAYERS (with that of the outputs), NETS and for
// each net n and layer l in_of(n, l), out_of(n, l), rows_of(n, l) (of the weights, padding included), weight_at(n, l),
// bias_at(n, l) and workers_of(n, l); NORM (hidden sums are normalised, row by row) and gain_at(n, l), shift_at(n, l);
// BY_INPUTS (of so many features from INPUTS_FROM on the gradient is wanted); LOG_STD_AT, LOG_STD_LOW and _HIGH, LOG_STDS,
// MEANS, LINE, STAGES, STAGES_OF_TILE (the most that the weights of a tile take), SHARED_TRUNK (the first net has the value
// beside the means; otherwise net 1 is the critic), OUTPUTS_BYTES, ROW_BYTES, SHARED_BYTES.

constexpr int GROUPS = WARPS / 4, GROUP_TILE = GROUPS * GROUP_ROWS;
constexpr int PIECE = 128, EACH = PIECE / int(sizeof(Stored));  // of activations
constexpr int CHUNK = 256;

// Weights come in pieces of lines of LINE bytes; a stage has as many pieces as its bytes allow.
constexpr int LINE_EACH = LINE / int(sizeof(Stored)), STAGE = 256 * LINE;
FN constexpr int pieces_of(int depth) { return (depth + LINE_EACH - 1) / LINE_EACH; }
FN constexpr int pieces_of_stage(int lines) {  // (a chunk of inputs ends with a stage)
    int pieces = 1;
    while (2 * pieces * lines * LINE <= STAGE && 2 * pieces * LINE_EACH <= CHUNK) pieces *= 2;
    return pieces;
}

FN constexpr int outs_of(int net, int l) { return padded(out_of(net, l), 16); }
FN constexpr int bias_of(int net, int l) {  // where a layer's lie
    int sum = 0;
    for (int k = 0; k < l; ++k) sum += outs_of(net, k);
    return sum;
}
constexpr int MOST_BIAS = maximum(bias_of(0, LAYERS), bias_of(NETS - 1, LAYERS)), NORMED = NORM ? bias_of(0, LAYERS - 1) : 0;
constexpr int INPUTS = padded(FEATURES, DEPTH);

// On the way forth all layers are steps, then back those from the last to the second, or to the first where the
// gradient by inputs is wanted.
constexpr int STEPS_FORTH = LAYERS, STEPS = 2 * LAYERS - (BY_INPUTS > 0 ? 0 : 1);
FN constexpr int layer_of(int step) { return step < LAYERS ? step : 2 * LAYERS - 1 - step; }
FN constexpr int lines_of(int net, int step) {
    const int l = layer_of(step);
    return step < LAYERS ? outs_of(net, l) : l == 0 ? padded(BY_INPUTS, 16) : in_of(net, l);
}
FN constexpr int depth_of(int net, int step) {
    return step < LAYERS ? padded(in_of(net, layer_of(step)), DEPTH) : outs_of(net, layer_of(step));
}
FN constexpr u32 packed_bytes(int net, int steps) {  // of the weights of so many
    u32 bytes = 0;
    for (int s = 0; s < steps; ++s) bytes += u32(pieces_of(depth_of(net, s)) * lines_of(net, s) * LINE);
    return bytes;
}
FN constexpr u32 packed_place(int net, int step) {
    return (net == 0 ? 0 : packed_bytes(0, STEPS)) + packed_bytes(net, step);
}

// What updates keep of each 64 samples of a net: the inputs, with a line of ones, the activations of hidden layers, the
// derivatives by those layers' sums, and those by the outputs. Until the way back, the place of derivatives has what they
// need: the slopes of activations whose value does not tell them, or what NORM made of sums. Inputs are cut into parts,
// none longer than a product.
constexpr int INPUT_PARTS = (padded(FEATURES + 1, 16) + 255) / 256;
constexpr int INPUT_PART  = padded((FEATURES + INPUT_PARTS) / INPUT_PARTS, 16);
FN constexpr int kept_lines(int net, int number) {
    return number == 0              ? INPUT_PARTS * INPUT_PART
           : number < LAYERS        ? out_of(net, number - 1)
           : number < 2 * LAYERS - 1 ? out_of(net, number - LAYERS)
                                    : outs_of(net, LAYERS - 1);
}
FN constexpr u64 kept_bytes(int net, int numbers) {
    u64 bytes = 0;
    for (int number = 0; number < numbers; ++number) bytes += u64(kept_lines(net, number)) * GROUP_ROWS * sizeof(Stored);
    return bytes;
}
template <int NET, class Call> FN unsigned char* kept_of(const Call& call, int number, Index unit, int ahead = 0) {
    const u64 before = (NET == 0 ? 0 : kept_bytes(0, 2 * LAYERS)) + kept_bytes(NET, number);
    const u64 each   = u64(kept_lines(NET, number)) * GROUP_ROWS * sizeof(Stored);  // the same for those `ahead`
    return const_cast<unsigned char*>(call.kept) + (before + each * u64(ahead)) * u64(call.units) + each * u64(unit);
}

// Hidden layers side by side that are equally wide share their instructions, which are many: alike_until(net, l) is one
// past the last that is as wide as `l`, and alike_from(net, l) the first.
FN constexpr int alike_until(int net, int l) {
    int end = l + 1;
    while (end < LAYERS - 1 && out_of(net, end) == out_of(net, l)) ++end;
    return end;
}
FN constexpr int alike_from(int net, int l) {
    while (l > 0 && out_of(net, l - 1) == out_of(net, l)) --l;
    return l;
}

struct WideRows {
    alignas(1024) unsigned char rows[GROUPS][ROW_BYTES];
    Ring<STAGES, STAGE, GROUPS> ring;
};

struct WideNumbers {
    alignas(16) float bias[MOST_BIAS], gains[NORMED + 1], shifts[NORMED + 1];
    alignas(16) float mean[INPUTS], inverse[INPUTS];
    float values[GROUPS * GROUP], sums[WARPS][SUMS_AND_MORE];
    struct { u32 from, bytes; } of_stage[STAGES_OF_TILE];  // where its weights lie among the packed ones
    u32   zero;
};

struct WideMemory : WideRows, WideNumbers {
    FN static WideMemory& of_block() { return *reinterpret_cast<WideMemory*>(memory_of_block(1024)); }
};

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

// The weights of all tiles of a block, one after another.
template <int NET, int STEPS_OF_TILE> struct Weights {
    WideMemory&          memory;
    const unsigned char* packed;
    bool                 last;  // whether tiles take the last step, too
    u32                  end;   // stages of all tiles

    FN static constexpr int stages_of(int step, int most = 1 << 20) {  // so deep
        const int each = pieces_of_stage(lines_of(NET, step));
        return (pieces_of(minimum(depth_of(NET, step), most)) + each - 1) / each;
    }
    // Whether warpgroups multiply one after another, each while the other makes rows of what its products found: in bf16,
    // if the ring holds all weights of a product, for the first takes them before the second does.
    FN static constexpr bool in_turn() {
        bool found = sizeof(Stored) == 2;
        for (int step = 0; step < STEPS_OF_TILE; ++step) found = found && stages_of(step, CHUNK) <= STAGES;
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
        static_assert(stages() <= STAGES_OF_TILE);
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
        u32 stage = number, from = packed_place(NET, 0);
        for (int step = 0; step < STEPS_OF_TILE; ++step) {
            const u32 own = u32(stages_of(step)), of_piece = u32(lines_of(NET, step) * LINE);
            const u32 all = u32(pieces_of(depth_of(NET, step))) * of_piece;
            if (stage < own) {
                const u32 first = stage * u32(pieces_of_stage(lines_of(NET, step))) * of_piece;
                const u32 bytes = minimum(u32(pieces_of_stage(lines_of(NET, step))) * of_piece, all - first);
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
template <int NET, class Call> FN void load_numbers(WideNumbers& memory, const Call& call, const Scale& scale) {
    for (int l = 0; l < LAYERS; ++l) {
        for (int j = thread_rank(); j < outs_of(NET, l); j += THREADS) {
            memory.bias[bias_of(NET, l) + j] = j < out_of(NET, l) ? call.flat[bias_at(NET, l) + j] : 0.0f;
            if (NORM && l + 1 < LAYERS) {
                memory.gains[bias_of(NET, l) + j]  = call.flat[gain_at(NET, l) + j];
                memory.shifts[bias_of(NET, l) + j] = call.flat[shift_at(NET, l) + j];
            }
        }
    }
    for (int j = thread_rank(); j < INPUTS; j += THREADS) {
        const bool scaled = scale.mean != nullptr && j < FEATURES;
        memory.mean[j]    = scaled ? scale.mean[j] : 0.0f;
        memory.inverse[j] = scaled ? scale.inverse[j] : 1.0f;
    }
}

// Begins with a network: with those, and the ring for so many tiles, which take all steps or all but the last.
template <int NET, int STEPS_OF_TILE, class Call>
FN Weights<NET, STEPS_OF_TILE> begin_network(WideMemory& memory, const Call& call, const Scale& scale, u32 tiles,
                                             bool last = true) {
    static_assert(sizeof(WideMemory) + 1024 <= (NET < 0 ? 0 : SHARED_BYTES));
    load_numbers<NET>(memory, call, scale);
    using Streamed         = Weights<NET, STEPS_OF_TILE>;
    const Streamed weights = {memory, call.packed, last, Streamed::of_tile(last) * tiles};
    if (thread_rank() == 0) memory.zero = 0;
    weights.begin();
    block_barrier();
    return weights;
}

// Where the largest magnitude among inputs is noted, by its bits, and whether this thread's row counts.
struct Largest { u32* magnitude; int counts; };

// What a warp's rows are made of: observations, `place` being that of the row of each of its first 16 threads, below 0
// none. They are normalised, and for updates kept in `kept`, unless that is null, with a line of ones behind them.
template <class Tile> struct Inputs {
    const float* observations;
    int          place;
    const Scale& scale;
    Tile*        kept;
    Largest      seen;
};

// A number cut off at a limit on either side; what is none stays so.
FN float within(float x, float limit) {
    asm("max.NaN.f32 %0, %0, %1;\nmin.NaN.f32 %0, %0, %2;" : "+f"(x) : "f"(-limit), "f"(limit));
    return x;
}

// A warp's outputs of a network.
template <int NET> using Outputs = float[outs_of(NET, LAYERS - 1) / 8][4];

// Where a warp is, in its block and in its group, and the values of its rows.
struct InBlock {
    WideNumbers& numbers;
    const int    group, warp, lane;

    FN explicit InBlock(WideNumbers& numbers_)
        : numbers(numbers_), group(group_of_block()), warp(thread_rank() / WARP % 4), lane(warp_lane()) {}

    // The value of each of 16 rows, which is the output of a number.
    template <int N> FN void store_values(const float (&c)[N][4], int of) const {
        UNROLL
        for (int j = 0; j < N; ++j) {
            UNROLL
            for (int q = 0; q < 4; ++q) {
                if (8 * j + lane % 4 * 2 + q % 2 == of) values()[lane / 4 + q / 2 * 8] = c[j][q];
            }
        }
        warp_barrier();
    }
    FN float* values() const { return numbers.values + thread_rank() / WARP * WARP; }

    FN void await_turn() const {
        asm volatile("bar.sync %0, %1;" ::"r"(GROUPS + 1 + group), "n"(2 * GROUP) : "memory");
    }
    FN void pass_turn() const {
        asm volatile("bar.arrive %0, %1;" ::"r"(GROUPS + 1 + (group + 1) % GROUPS), "n"(2 * GROUP) : "memory");
    }
};

// A warpgroup at work on its rows.
template <class Source> struct Rowwise : InBlock {
    WideMemory&          memory;
    const Source         source;
    unsigned char* const rows;
    u32                  number = 0;  // of the stage that comes next

    FN Rowwise(WideMemory& memory_, const Source& source_)
        : InBlock(memory_), memory(memory_), source(source_), rows(memory_.rows[group_of_block()]) {
        if (Source::in_turn() && group == GROUPS - 1) pass_turn();  // the first turn is the first group's
    }
    FN ~Rowwise() {
        if (Source::in_turn() && group == 0) await_turn();  // and so is the last, which nobody takes
    }

    // Adds the product with what the ring brings next: FIRST numbers of each row, from `aside` on, for N columns, or if
    // `whole` as many as there are columns. One place in the code for both is quicker than two.
    template <int FIRST, int N> FN void multiply(float (&c)[N][4], bool whole = false, u32 aside = 0) {
        constexpr int parts = pieces_of_stage(8 * N) * OF_LINE;
        constexpr int rest = FIRST / DEPTH % parts, rest_of_whole = 8 * N / DEPTH % parts;
        const int     all   = (whole ? 8 * N : FIRST) / DEPTH;
        const Lines<> left(u32(from_lane(int(shared_address(rows) + nothing()), 0)) + aside);
        const u32     ring = shared_address(memory.ring.stages) + nothing();
        settle(c);
        if (Source::in_turn()) await_turn();
        ROLLED
        for (int done = 0; done < all; done += parts) {
            const u32 from = part_of_row(done);
            if (all - done >= parts) multiply_stage<parts>(c, left, from, ring);
            else if (rest_of_whole > 0 && whole) multiply_stage<rest_of_whole>(c, left, from, ring);
            else if (rest > 0) multiply_stage<rest>(c, left, from, ring);
            if (done > 0) leave(number - 2);
        }
        if (Source::in_turn()) pass_turn();
        finish<0>();
        settle(c);
        leave(number - 1);
    }
    static constexpr int PART = DEPTH * int(sizeof(Stored)), OF_LINE = LINE / PART;  // bytes of a product's depth
    FN static u32 part_of_row(int part) { return u32(part * PART / PIECE * (GROUP_ROWS * PIECE) + part * PART % PIECE); }
    template <int PARTS, int N> FN void multiply_stage(float (&c)[N][4], Lines<> left, u32 first, u32 ring) {
        const Lines<LINE> right(u32(from_lane(int(ring + number % STAGES * STAGE), 0)));
        left.move(first);
        memory.ring.await(number);
        begin_products();
        UNROLL
        for (int part = 0; part < PARTS; ++part) {
            const u32 place = u32(part / OF_LINE * 8 * N * LINE + part % OF_LINE * PART);
            Product<8 * N>::add(c, left.at(part_of_row(part)), right.at(place), true);
        }
        commit_products();
        finish<1>();
        ++number;
    }
    FN void leave(u32 number) { memory.ring.leave(number, source); }

    // Nothing, of which no compiler knows it: what is added to it is worked out anew for each tile, where it would take
    // registers from tile to tile otherwise.
    FN u32 nothing() const {
        u32 found;
        asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(found) : "r"(shared_address(&memory.zero)));
        return found;
    }

    // Makes them, which are rounded, the rows.
    template <int N> FN void store(const float (&c)[N][4]) {
        const u32            above = threadIdx.x % WARP / 4, aside = threadIdx.x % 4 * 2;
        unsigned char* const own   = rows + u32(warp * WARP_ROWS * PIECE) + nothing();
        UNROLL
        for (int j = 0; j < N; ++j) {
            unsigned char* const at = own + row_place(above, u32(8 * j) + aside);
            Arithmetic::store_rounded(reinterpret_cast<Stored*>(at), c[j][0], c[j][1]);
            Arithmetic::store_rounded(reinterpret_cast<Stored*>(at + 8 * PIECE), c[j][2], c[j][3]);
        }
    }

    // Makes the features from `FROM` on the rows. Many are fetched before any is used, unless sums have the registers.
    template <bool KEPT, int FROM, class Tile> FN void load_inputs(const Inputs<Tile>& inputs) {
        constexpr int end   = FROM + CHUNK < INPUTS ? FROM + CHUNK : KEPT ? Tile::LINES_OF : INPUTS;
        constexpr int turns = padded(end - FROM, WARP) / WARP, most = FROM == 0 ? CHUNK / WARP : 2;
        constexpr int some  = turns < most ? turns : most;
        unsigned char* const own = rows + u32(warp * WARP_ROWS * PIECE) + nothing();
        UNROLL
        for (int first = 0; first < turns; first += some) {
            const int column = FROM + first * WARP + lane;
            float     x[some][WARP_ROWS];
            UNROLL
            for (int r = 0; r < WARP_ROWS; ++r) {
                const int          of_row = from_lane(inputs.place, r);
                const float* const from   = inputs.observations + Index(of_row) * FEATURES + column;
                UNROLL
                for (int turn = 0; turn < some; ++turn) {
                    x[turn][r] = of_row >= 0 && turn * WARP + column < FEATURES ? from[turn * WARP] : 0.0f;
                }
            }
            UNROLL
            for (int turn = 0; turn < some; ++turn) take_inputs<KEPT, FROM>(x[turn], column + turn * WARP, own, inputs);
        }
    }
    template <bool KEPT, int FROM, class Tile>
    FN void take_inputs(float (&x)[WARP_ROWS], int column, unsigned char* own, const Inputs<Tile>& inputs) {
        const Scale& scale = inputs.scale;
        if (inputs.seen.magnitude != nullptr) {
            u32 largest = *inputs.seen.magnitude;  // (in a register: the compiler keeps what is pointed to in memory)
            UNROLL
            for (int r = 0; r < WARP_ROWS; ++r) {
                largest = maximum(largest, from_lane(inputs.seen.counts, r) ? bits_of(x[r]) & ~(1u << 31) : 0);
            }
            *inputs.seen.magnitude = largest;
        }
        if (scale.mean != nullptr) {
            const float mean = column < INPUTS ? memory.mean[column] : 0.0f;
            const float inverse = column < INPUTS ? memory.inverse[column] : 0.0f;
            UNROLL  // (rows that are not there may be any numbers)
            for (int r = 0; r < WARP_ROWS; ++r) x[r] = within((x[r] - mean) * inverse, scale.limit);
        }
        if (column < minimum_of(INPUTS, FROM + CHUNK)) {
            UNROLL
            for (int r = 0; r < WARP_ROWS; ++r) {
                *reinterpret_cast<Stored*>(own + row_place(u32(r), u32(column - FROM))) = Arithmetic::stored(x[r]);
            }
        }
        if constexpr (KEPT) {
            if (column >= Tile::LINES_OF || inputs.kept == nullptr) return;
            const float one = column == FEATURES ? 1.0f : 0.0f;
            u32         words[WARP_ROWS * sizeof(Stored) / 4];
            UNROLL
            for (int r = 0; r < WARP_ROWS / 2; ++r) Arithmetic::write_pair(words, r, x[r] + one, x[r + 8] + one);
            UNROLL
            for (int part = 0; part < WARP_ROWS * int(sizeof(Stored)) / 16; ++part) {
                Stored* const at = inputs.kept->at(column, warp * WARP_ROWS + part * (16 / int(sizeof(Stored))));
                *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(words + 4 * part);
            }
        }
    }
};

// Calls `each(j, q, place)` for a warp's accumulators of 8 N columns: where each would lie among so many of all rows and
// nets, or -1 where there is no such row or column.
template <int NET, int N, int COLUMNS, class Own, class Each>
FN void for_accumulators(const Own& own, Index rows, Index unit, const Each& each) {
    const Index first = unit * GROUP_ROWS + own.warp * WARP_ROWS + own.lane / 4;
    UNROLL
    for (int j = 0; j < N; ++j) {
        UNROLL
        for (int q = 0; q < 4; ++q) {
            const int   column = 8 * j + own.lane % 4 * 2 + q % 2;
            const Index row    = first + q / 2 * 8;
            each(j, q, row < rows && column < COLUMNS ? (row * NETS + NET) * COLUMNS + column : Index(-1));
        }
    }
}

// Of a row, which four threads of a warp share, two columns in eight each.
template <class T> FN T over_row_sum(T x) {
    x += from_lane_across(x, 1);
    return x + from_lane_across(x, 2);
}

// Sums less their row's mean, over its deviation.
template <int N> FN void normalise(float (&c)[N][4], float (&inverse)[2]) {
    constexpr float share = 1.0f / float(8 * N);
    UNROLL
    for (int h = 0; h < 2; ++h) {
        float mean = 0, square = 0;
        UNROLL
        for (int j = 0; j < N; ++j) mean += c[j][2 * h] + c[j][2 * h + 1];
        mean = over_row_sum(mean) * share;
        UNROLL
        for (int j = 0; j < N; ++j) {
            UNROLL
            for (int q = 2 * h; q < 2 * h + 2; ++q) {
                c[j][q] -= mean;
                square = fma(c[j][q], c[j][q], square);
            }
        }
        inverse[h] = 1.0f / square_root(over_row_sum(square) * share + NORM_EPSILON);
        UNROLL
        for (int j = 0; j < N; ++j) {
            UNROLL
            for (int q = 2 * h; q < 2 * h + 2; ++q) c[j][q] *= inverse[h];
        }
    }
}
template <int N> FN void stretch(float (&c)[N][4], const float* gains, const float* shifts) {
    UNROLL
    for (int j = 0; j < N; ++j) {
        const int     column = 8 * j + warp_lane() % 4 * 2;
        const Wide<2> gain = read_anew(gains + column), shift = read_anew(shifts + column);
        UNROLL
        for (int q = 0; q < 4; ++q) c[j][q] = fma(c[j][q], gain.value[q % 2], shift.value[q % 2]);
    }
}

// The first layer's products, chunk by chunk; `tile.load<from>(own)` makes the next chunk the rows.
template <int FROM, class Own, class Tile, int N> FN void multiply_inputs(Own& own, const Tile& tile, float (&c)[N][4]) {
    constexpr int rest = INPUTS - FROM;
    own.template multiply<(rest < CHUNK ? rest : CHUNK)>(c);
    if constexpr (rest > CHUNK) {
        group_barrier();
        tile.template load<FROM + CHUNK>(own);
        publish();
        group_barrier();
        multiply_inputs<FROM + CHUNK>(own, tile, c);
    }
}

// All layers from `L` on. Of hidden layer l = L + ahead `tile.sums<L>(c, inverse, ahead)` is given the sums, normalised if
// they are to be, and `tile.activations<L>(c, ahead)` the activations before they become the rows; `use(c)` is given the
// outputs.
template <int NET, int L, class Own, class Tile, class Use>
FN void go_forth(Own& own, const Tile& tile, const Use& use) {
    constexpr int N = outs_of(NET, L) / 8;
    if constexpr (L + 1 < LAYERS) {
        constexpr int END = Tile::SHARES ? alike_until(NET, L) : L + 1;
        ROLLED
        for (int ahead = 0; ahead < END - L; ++ahead) {
            const int first = bias_of(NET, L) + ahead * 8 * N;
            float     c[N][4], inverse[2] = {};
            begin(c, own.memory.bias + first, own.lane);
            if constexpr (L > 0 || INPUTS <= CHUNK) own.template multiply<(L > 0 ? in_of(NET, L) : INPUTS)>(c, ahead > 0);
            else if (ahead > 0) own.template multiply<8 * N>(c);
            else multiply_inputs<0>(own, tile, c);
            if (NORM) normalise(c, inverse);
            tile.template sums<L>(c, inverse, ahead);
            if (NORM) stretch(c, own.memory.gains + first, own.memory.shifts + first);
            activate(c);
            round_once(c);  // (of what relu made zero a denormal, which is zero to all that follows)
            group_barrier();  // all products with the rows are done
            tile.template activations<L>(c, ahead);
            own.store(c);
            publish();
            group_barrier();
        }
        go_forth<NET, END>(own, tile, use);
    } else {
        float c[N][4];
        begin(c, own.memory.bias + bias_of(NET, L), own.lane);
        own.template multiply<in_of(NET, L)>(c);
        group_barrier();
        use(c);
    }
}

// Rows of which nothing is kept.
struct Passing {
    template <int L, int N> FN void sums(const float (&)[N][4], const float (&)[2], int) const {}
    template <int L, int N> FN void activations(const float (&)[N][4], int) const {}
};
