// The forward pass of a wide perceptron: a warpgroup runs 64 rows through all layers.
//
// If weights are streamed, activations are in shared memory, as the next product's left factor. If all weights of a net
// fit in shared memory, activations stay in registers.

// The largest magnitude of the inputs, as bits (null: not needed), and whether this thread's row counts.
struct MaxMagnitude { u32* magnitude; int counts; };

// The inputs of a warp's rows: each of its first 16 threads has the index of a row of observations, negative for none.
// They are normalised, and for updates also saved in `saved`, if it is not null, with a line of ones at the end.
template <class Tile> struct Inputs {
    const float* observations;
    int          index;
    const Scale& scale;
    Tile*        saved;
    MaxMagnitude largest;
};

// Clips to [-limit, limit]; NaN stays NaN.
FN float clip_nan(float x, float limit) {
    asm("max.NaN.f32 %0, %0, %1;\nmin.NaN.f32 %0, %0, %2;" : "+f"(x) : "f"(-limit), "f"(limit));
    return x;
}

// A warp's outputs of a network.
template <class Net> using Outputs = float[Net::padded_outs(Net::LAYERS - 1) / 8][4];

// A warp's position in its block and warpgroup, and access to the block's vectors.
template <class Net> struct WarpContext {
    using Vectors = WideVectors<typename Net::Shape>;
    Vectors&  vectors;
    const int group, warp, lane;

    FN explicit WarpContext(Vectors& vectors_)
        : vectors(vectors_), group(group_of_block()), warp(thread_rank() / WARP % 4), lane(warp_lane()) {}

    // Stores the critic's values of the warp's 16 rows: one column of the outputs.
    template <int N> FN void store_values(const float (&c)[N][4], int column) const {
        FOR_EACH_NUMBER(j, q, N) {
            if (8 * j + lane % 4 * 2 + q % 2 == column) values()[lane / 4 + q / 2 * 8] = c[j][q];
        }
        warp_barrier();
    }
    FN float* values() const { return vectors.values + thread_rank() / WARP * WARP; }

    FN void wait_turn() const {
        asm volatile("bar.sync %0, %1;" ::"r"(GROUPS + 1 + group), "n"(2 * GROUP) : "memory");
    }
    FN void pass_turn() const {
        asm volatile("bar.arrive %0, %1;" ::"r"(GROUPS + 1 + (group + 1) % GROUPS), "n"(2 * GROUP) : "memory");
    }
};

// Runs a warpgroup's rows with streamed weights; `rows` in shared memory are the current activations.
template <class Stream> struct StreamedRows : WarpContext<typename Stream::NetType> {
    using Net    = typename Stream::NetType;
    using Memory = WideMemory<typename Net::Shape>;
    using WarpContext<Net>::group, WarpContext<Net>::warp, WarpContext<Net>::lane;
    using WarpContext<Net>::wait_turn, WarpContext<Net>::pass_turn;
    static constexpr int INPUTS = Net::INPUTS, FEATURES = Net::FEATURES;
    Memory&              memory;
    const Stream         stream;
    unsigned char* const rows;
    u32                  number = 0;  // of the next stage

    FN explicit StreamedRows(const Stream& stream_)
        : WarpContext<Net>(stream_.memory), memory(stream_.memory), stream(stream_), rows(memory.rows[group]) {
        if (Stream::takes_turns() && group == GROUPS - 1) pass_turn();  // the first group has the first turn
    }
    FN ~StreamedRows() {
        if (Stream::takes_turns() && group == 0) wait_turn();  // matches the last pass_turn()
    }

    // Adds the product of the rows and the ring's next stages, for 8 N columns. The depth is INNER, or 8 N if `square`;
    // rows start at byte `offset`. One copy of the code for both depths is faster than two.
    template <int INNER, int N> FN void multiply(float (&c)[N][4], bool square = false, u32 offset = 0) {
        constexpr int parts = pieces_of_stage(8 * N) * LINE_PARTS;
        constexpr int rest = INNER / DEPTH % parts, rest_of_square = 8 * N / DEPTH % parts;
        const int     total = (square ? 8 * N : INNER) / DEPTH;
        const LineDescriptor<> left(u32(shuffle(int(shared_address(rows) + opaque_zero()), 0)) + offset);
        const u32     ring = shared_address(memory.ring.stages) + opaque_zero();
        fence_registers(c);
        if (Stream::takes_turns()) wait_turn();
        NO_UNROLL
        for (int done = 0; done < total; done += parts) {
            const u32 from = part_offset(done);
            if (total - done >= parts) multiply_stage<parts>(c, left, from, ring);
            else if (rest_of_square > 0 && square) multiply_stage<rest_of_square>(c, left, from, ring);
            else if (rest > 0) multiply_stage<rest>(c, left, from, ring);
            if (done > 0) release(number - 2);
        }
        if (Stream::takes_turns()) pass_turn();
        wait_products<0>();
        fence_registers(c);
        release(number - 1);
    }
    // The bytes of a product's depth, and products per line of weights.
    static constexpr int PART = DEPTH * int(sizeof(Stored)), LINE_PARTS = LINE / PART;
    FN static u32 part_offset(int part) {
        return u32(part * PART / PIECE * (GROUP_ROWS * PIECE) + part * PART % PIECE);
    }
    template <int PARTS, int N> FN void multiply_stage(float (&c)[N][4], LineDescriptor<> left, u32 first, u32 ring) {
        const LineDescriptor<LINE> right(
            u32(shuffle(int(ring + number % STAGES<typename Net::Shape> * STAGE_BYTES), 0)));
        left.move(first);
        memory.ring.wait(number);
        start_products();
        UNROLL
        for (int part = 0; part < PARTS; ++part) {
            const u32 offset = u32(part / LINE_PARTS * 8 * N * LINE + part % LINE_PARTS * PART);
            Product<8 * N>::add(c, left.at(part_offset(part)), right.at(offset), true);
        }
        commit_products();
        wait_products<1>();
        ++number;
    }
    FN void release(u32 number) { memory.ring.release(number, stream); }

    // Zero, in a form that is opaque to the compiler: addresses that include it are recomputed for each tile, and take
    // no registers from tile to tile.
    FN u32 opaque_zero() const {
        u32 zero;
        asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(zero) : "r"(shared_address(&memory.zero)));
        return zero;
    }

    // Stores rounded activations as the rows.
    template <int N> FN void store(const float (&c)[N][4]) {
        const u32            first_row = threadIdx.x % WARP / 4, column = threadIdx.x % 4 * 2;
        unsigned char* const warp_rows = rows + u32(warp * WARP_ROWS * PIECE) + opaque_zero();
        UNROLL
        for (int j = 0; j < N; ++j) {
            unsigned char* const at = warp_rows + row_offset(first_row, u32(8 * j) + column);
            Arithmetic::store_rounded(reinterpret_cast<Stored*>(at), c[j][0], c[j][1]);
            Arithmetic::store_rounded(reinterpret_cast<Stored*>(at + 8 * PIECE), c[j][2], c[j][3]);
        }
    }

    // Loads a chunk of features, from `FROM` on, as the rows. Many are fetched before any is used, except while
    // accumulators occupy the registers.
    template <bool SAVED, int FROM, class Tile> FN void load_inputs(const Inputs<Tile>& inputs) {
        constexpr int end   = FROM + CHUNK < INPUTS ? FROM + CHUNK : SAVED ? Tile::LINE_COUNT : INPUTS;
        constexpr int steps = padded(end - FROM, WARP) / WARP, max_steps = FROM == 0 ? CHUNK / WARP : 2;
        constexpr int batch = steps < max_steps ? steps : max_steps;
        unsigned char* const warp_rows = rows + u32(warp * WARP_ROWS * PIECE) + opaque_zero();
        UNROLL
        for (int first = 0; first < steps; first += batch) {
            const int column = FROM + first * WARP + lane;
            float     x[batch][WARP_ROWS];
            UNROLL
            for (int r = 0; r < WARP_ROWS; ++r) {
                const int          row_index = shuffle(inputs.index, r);
                const float* const from      = inputs.observations + Index(row_index) * FEATURES + column;
                UNROLL
                for (int step = 0; step < batch; ++step) {
                    x[step][r] = row_index >= 0 && step * WARP + column < FEATURES ? from[step * WARP] : 0.0f;
                }
            }
            UNROLL
            for (int step = 0; step < batch; ++step) {
                store_inputs<SAVED, FROM>(x[step], column + step * WARP, warp_rows, inputs);
            }
        }
    }
    template <bool SAVED, int FROM, class Tile>
    FN void store_inputs(float (&x)[WARP_ROWS], int column, unsigned char* warp_rows, const Inputs<Tile>& inputs) {
        const Scale& scale = inputs.scale;
        if (inputs.largest.magnitude != nullptr) {
            u32 largest = *inputs.largest.magnitude;  // a local copy, which the compiler keeps in a register
            UNROLL
            for (int r = 0; r < WARP_ROWS; ++r) {
                largest = maximum(largest, shuffle(inputs.largest.counts, r) ? bits_of(x[r]) & ~(1u << 31) : 0);
            }
            *inputs.largest.magnitude = largest;
        }
        if (scale.mean != nullptr) {
            const float mean = column < INPUTS ? memory.mean[column] : 0.0f;
            const float inverse = column < INPUTS ? memory.inverse[column] : 0.0f;
            UNROLL  // rows without an observation may get any values
            for (int r = 0; r < WARP_ROWS; ++r) x[r] = clip_nan((x[r] - mean) * inverse, scale.limit);
        }
        if (column < minimum_of(INPUTS, FROM + CHUNK)) {
            UNROLL
            for (int r = 0; r < WARP_ROWS; ++r) {
                *reinterpret_cast<Stored*>(warp_rows + row_offset(u32(r), u32(column - FROM))) =
                    Arithmetic::stored(x[r]);
            }
        }
        if constexpr (SAVED) {
            if (column >= Tile::LINE_COUNT || inputs.saved == nullptr) return;
            const float one = column == FEATURES ? 1.0f : 0.0f;
            u32         words[WARP_ROWS * sizeof(Stored) / 4];
            UNROLL
            for (int r = 0; r < WARP_ROWS / 2; ++r) Arithmetic::write_pair(words, r, x[r] + one, x[r + 8] + one);
            UNROLL
            for (int part = 0; part < WARP_ROWS * int(sizeof(Stored)) / 16; ++part) {
                Stored* const at = inputs.saved->at(column, warp * WARP_ROWS + part * (16 / int(sizeof(Stored))));
                *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(words + 4 * part);
            }
        }
    }
};

// Calls each(j, q, index) for a warp's accumulators of 8 N columns: their index in an array [rows, nets, COLUMNS], or
// -1 beyond its rows or columns.
template <class Net, int N, int COLUMNS, class Runner, class Each>
FN void for_accumulators(const Runner& runner, Index rows, Index unit, const Each& each) {
    const Index first = unit * GROUP_ROWS + runner.warp * WARP_ROWS + runner.lane / 4;
    FOR_EACH_NUMBER(j, q, N) {
        const int   column = 8 * j + runner.lane % 4 * 2 + q % 2;
        const Index row    = first + q / 2 * 8;
        each(j, q, row < rows && column < COLUMNS ? (row * Net::NETS + Net::NUMBER) * COLUMNS + column : Index(-1));
    }
}

// The sum over the four threads of a warp that share a row; each has two of eight columns.
template <class T> FN T row_sum(T x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

// Layer normalisation: subtracts each row's mean, and multiplies by its inverse standard deviation, `inverse`.
template <int N> FN void normalise(float (&c)[N][4], float (&inverse)[2]) {
    constexpr float scale = 1.0f / float(8 * N), epsilon = 1e-5f;  // torch's default, added to the variance
    FOR_BOTH_ROWS(h) {
        float mean = 0, square = 0;
        UNROLL
        for (int j = 0; j < N; ++j) mean += c[j][2 * h] + c[j][2 * h + 1];
        mean = row_sum(mean) * scale;
        UNROLL
        for (int j = 0; j < N; ++j) {
            UNROLL
            for (int q = 2 * h; q < 2 * h + 2; ++q) {
                c[j][q] -= mean;
                square = fma(c[j][q], c[j][q], square);
            }
        }
        inverse[h] = 1.0f / square_root(row_sum(square) * scale + epsilon);
        UNROLL
        for (int j = 0; j < N; ++j) {
            UNROLL
            for (int q = 2 * h; q < 2 * h + 2; ++q) c[j][q] *= inverse[h];
        }
    }
}
// Applies the gains and shifts of layer normalisation.
template <int N> FN void scale_and_shift(float (&c)[N][4], const float* gains, const float* shifts) {
    UNROLL
    for (int j = 0; j < N; ++j) {
        const int     column = 8 * j + warp_lane() % 4 * 2;
        const Wide<2> gain = reload_pair(gains + column), shift = reload_pair(shifts + column);
        UNROLL
        for (int q = 0; q < 4; ++q) c[j][q] = fma(c[j][q], gain.value[q % 2], shift.value[q % 2]);
    }
}

// Adds the first layer's products to c, by chunks of inputs; tile.load<from>(runner) loads the next chunk as the rows.
template <int FROM, class Runner, class Tile, int N>
FN void multiply_inputs(Runner& runner, const Tile& tile, float (&c)[N][4]) {
    constexpr int rest = Runner::INPUTS - FROM;
    runner.template multiply<(rest < CHUNK ? rest : CHUNK)>(c);
    if constexpr (rest > CHUNK) {
        group_barrier();
        tile.template load<FROM + CHUNK>(runner);
        publish();
        group_barrier();
        multiply_inputs<FROM + CHUNK>(runner, tile, c);
    }
}

// Runs all layers from `L` on; use(c) gets the outputs. For hidden layer l = L + ahead, tile.save_sums<L>(c, inverse,
// ahead) gets the pre-activations, normalised if Net::NORM, and tile.save_activations<L>(c, ahead) the activations.
template <class Net, int L, class Runner, class Tile, class Use>
FN void forward(Runner& runner, const Tile& tile, const Use& use) {
    constexpr int N = Net::padded_outs(L) / 8;
    if constexpr (L + 1 < Net::LAYERS) {
        constexpr int END = Tile::SHARES_CODE ? Net::same_width_end(L) : L + 1;
        NO_UNROLL
        for (int ahead = 0; ahead < END - L; ++ahead) {
            const int first = Net::bias_offset(L) + ahead * 8 * N;
            float     c[N][4], inverse[2] = {};
            set_to_bias(c, runner.memory.bias + first, runner.lane);
            if constexpr (L > 0) runner.template multiply<Net::in_of(L)>(c, ahead > 0);
            else if constexpr (Net::INPUTS <= CHUNK) runner.template multiply<Net::INPUTS>(c, ahead > 0);
            else if (ahead > 0) runner.template multiply<8 * N>(c);
            else multiply_inputs<0>(runner, tile, c);
            if (Net::NORM) normalise(c, inverse);
            tile.template save_sums<L>(c, inverse, ahead);
            if (Net::NORM) scale_and_shift(c, runner.memory.gains + first, runner.memory.shifts + first);
            activate(c);
            round_once(c);  // (turns relu's zeros into denormals, which are flushed to zero later)
            group_barrier();  // all products with the rows are done
            tile.template save_activations<L>(c, ahead);
            runner.store(c);
            publish();
            group_barrier();
        }
        forward<Net, END>(runner, tile, use);
    } else {
        float c[N][4];
        set_to_bias(c, runner.memory.bias + Net::bias_offset(L), runner.lane);
        runner.template multiply<Net::in_of(L)>(c);
        group_barrier();
        use(c);
    }
}

struct InferenceTile {
    template <int L, int N> FN void save_sums(const float (&)[N][4], const float (&)[2], int) const {}
    template <int L, int N> FN void save_activations(const float (&)[N][4], int) const {}
};

struct InferenceRows : InferenceTile {
    static constexpr bool SHARES_CODE = sizeof(Stored) == 2;  // in TF32 acting would be 7 % slower (updates are faster)
    const Inputs<GroupTile<8, DEPTH>>& inputs;
    FN explicit InferenceRows(const Inputs<GroupTile<8, DEPTH>>& inputs_) : inputs(inputs_) {}
    template <int FROM, class Runner> FN void load(Runner& runner) const {
        runner.template load_inputs<false, FROM>(inputs);
    }
};

// Runs a worker's tiles with streamed weights; takes the arguments of run_network().
template <class Net, class Call, class IndexOf, class Use>
FN void run_streamed(const Call& call, int worker, int workers, const IndexOf& index_of, u32* largest, const u8* alive,
                 const Use& use) {
    const Scale scale = {call.mean, call.inverse, call.limit};
    const Index tiles = (call.rows + GROUP_TILE - 1) / GROUP_TILE;
    const u32    count = tiles_of_worker(worker, workers, tiles);
    StreamedRows runner(start_network<Net, Net::FORWARD_STEPS>(call, scale, count));
    const auto  checked_index = [&](Index row) { return row < call.rows ? index_of(row) : -1; };
    const Index first         = runner.group * GROUP_ROWS + runner.warp * WARP_ROWS + runner.lane % WARP_ROWS;
    int         index         = checked_index(worker * Index(GROUP_TILE) + first);
    for (Index tile = worker; tile < tiles; tile += workers) {
        const Index row    = tile * GROUP_TILE + first;
        const int   counts = index >= 0 && (alive == nullptr || alive[index] != 0), current = index;
        const Inputs<GroupTile<8, DEPTH>> inputs = {call.observations, current, scale, nullptr, {largest, counts}};
        runner.template load_inputs<false, 0>(inputs);
        index = checked_index(row + workers * Index(GROUP_TILE));
        publish();
        group_barrier();
        forward<Net, 0>(runner, InferenceRows(inputs), [&](Outputs<Net>& c) {
            use(runner, c, row, current);
            group_barrier();
        });
    }
}

// --- all weights in shared memory ---

// Runs a warpgroup's rows in registers. Warpgroups take turns: while one multiplies, the other computes activations.
template <class Net> struct ResidentRows : WarpContext<Net> {
    using Memory = ResidentMemory<typename Net::Shape>;
    using WarpContext<Net>::group, WarpContext<Net>::wait_turn, WarpContext<Net>::pass_turn;
    const u32 weights;

    FN explicit ResidentRows(Memory& memory)
        : WarpContext<Net>(memory), weights(u32(shuffle(int(shared_address(memory.weights)), 0))) {
        if (group == GROUPS - 1) pass_turn();  // the first group has the first turn
    }
    FN ~ResidentRows() {
        if (group == 0) wait_turn();  // matches the last pass_turn()
    }
    template <int N, class Add> FN void multiply(float (&c)[N][4], const Add& add) const {
        fence_registers(c);
        wait_turn();
        start_products();
        add();
        commit_products();
        pass_turn();
        wait_products<0>();
        fence_registers(c);
    }
    template <int N> FN void store(const float (&)[N][4]) const {}  // rows stay in registers
};

// Loads all weights and vectors to shared memory; returns the runner of this warpgroup. All threads of a block call it.
template <class Net, class Call> FN ResidentRows<Net> load_resident(const Call& call, const Scale& scale) {
    auto& memory = ResidentRows<Net>::Memory::of_block();
    if (thread_rank() == 0) {
        const u32 bytes = Net::packed_bytes(Net::FORWARD_STEPS);
        init_mbarrier(&memory.mbarrier);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        expect_bytes(&memory.mbarrier, bytes);
        copy_bytes(memory.weights, call.packed + Net::packed_offset(0), bytes, &memory.mbarrier);
    }
    load_vectors<Net>(memory, call, scale);
    block_barrier();
    wait_mbarrier(&memory.mbarrier, 0);
    return ResidentRows<Net>(memory);
}

// Runs all layers from `L` on, with resident weights; use(c) gets the outputs, `tile` what the backward pass needs.
template <class Net, int L, int STEPS_OF_ROWS, class Tile, class Use>
FN void forward(const ResidentRows<Net>& runner, const Left (&rows)[STEPS_OF_ROWS], const Tile& tile, const Use& use) {
    constexpr int N = Net::padded_outs(L) / 8, PART = DEPTH * int(sizeof(Stored)), LINE_PARTS = LINE / PART;
    static_assert(STEPS_OF_ROWS * DEPTH >= Net::depth_of(L));
    const LineDescriptor<LINE> right(runner.weights + Net::packed_bytes(L));
    float             c[N][4], inverse[2] = {};
    set_to_bias(c, runner.vectors.bias + Net::bias_offset(L), runner.lane);
    runner.multiply(c, [&] {
        UNROLL
        for (int part = 0; part < Net::depth_of(L) / DEPTH; ++part) {
            const u32 offset = u32(part / LINE_PARTS * 8 * N * LINE + part % LINE_PARTS * PART);
            Product<8 * N>::add(c, rows[part].x, right.at(offset), true);
        }
    });
    if constexpr (L + 1 < Net::LAYERS) {
        if (Net::NORM) normalise(c, inverse);
        tile.template save_sums<L>(c, inverse, 0);
        if (Net::NORM) {
            scale_and_shift(c, runner.vectors.gains + Net::bias_offset(L), runner.vectors.shifts + Net::bias_offset(L));
        }
        activate(c);
        round_once(c);
        tile.template save_activations<L>(c, 0);
        Left activations[8 * N / DEPTH];
        gather(activations, c);
        forward<Net, L + 1>(runner, activations, tile, use);
    } else {
        use(c);
    }
}

// This thread's fragment of a warp's inputs, padded, with at least one column for the line of ones.
template <class Net> constexpr int PADDED_INPUTS = Net::saved_lines(0);
template <class Net> using InputFragment = float[PADDED_INPUTS<Net> / 8][4];

// Loads this thread's fragment of the inputs; rows with a negative index are zero.
template <class Net>
FN void load_inputs(InputFragment<Net>& x, const WarpContext<Net>& warp, const float* observations, int index) {
    const int column = warp.lane % 4 * 2;
    FOR_BOTH_ROWS(h) {
        const int          row_index = shuffle(index, warp.lane / 4 + 8 * h);
        const float* const row    = observations + Index(row_index) * Net::FEATURES + column;
        UNROLL
        for (int j = 0; j < PADDED_INPUTS<Net> / 8; ++j) {
            UNROLL
            for (int p = 0; p < 2; ++p) {
                const bool column_in = 8 * j + 8 <= Net::FEATURES || 8 * j + column + p < Net::FEATURES;
                const bool in_range  = row_index >= 0 && column_in;
                x[j][2 * h + p]      = in_range ? row[8 * j + p] : 0.0f;
            }
        }
    }
}

// Normalises and clips the inputs; before, raises target.magnitude to their largest magnitude in rows that count.
template <class Net>
FN void normalise_inputs(InputFragment<Net>& x, const WarpContext<Net>& warp, const Scale& scale,
                         const MaxMagnitude& target) {
    if (target.magnitude != nullptr) {
        const int g = warp.lane / 4, counts[2] = {shuffle(target.counts, g), shuffle(target.counts, g + 8)};
        u32       largest = *target.magnitude;  // a local copy, which the compiler keeps in a register
        FOR_EACH_NUMBER(j, q, PADDED_INPUTS<Net> / 8)
            largest = maximum(largest, counts[q / 2] ? bits_of(x[j][q]) & ~(1u << 31) : 0);
        *target.magnitude = largest;
    }
    if (scale.mean == nullptr) return;
    UNROLL
    for (int j = 0; j < Net::INPUTS / 8; ++j) {
        const int     column  = 8 * j + warp.lane % 4 * 2;
        const Wide<2> mean    = reload_pair(warp.vectors.mean + column);
        const Wide<2> inverse = reload_pair(warp.vectors.inverse + column);
        UNROLL
        for (int q = 0; q < 4; ++q) {
            x[j][q] = clip_nan((x[j][q] - mean.value[q % 2]) * inverse.value[q % 2], scale.limit);
        }
    }
}

// Runs a worker's tiles with all weights in shared memory; takes the arguments of run_network().
template <class Net, class Call, class IndexOf, class Use>
FN void run_resident(const Call& call, int worker, int workers, const IndexOf& index_of, u32* largest, const u8* alive,
                     const Use& use) {
    const Scale scale         = {call.mean, call.inverse, call.limit};
    const auto  runner        = load_resident<Net>(call, scale);
    const auto  checked_index = [&](Index row) { return row < call.rows ? index_of(row) : -1; };
    const auto  counts_of     = [&](int index) { return int(index >= 0 && (alive == nullptr || alive[index] != 0)); };
    const Index step          = workers * Index(GROUP_TILE);
    Index       row           = worker * Index(GROUP_TILE) + runner.group * GROUP_ROWS + runner.warp * WARP_ROWS +
                      runner.lane % WARP_ROWS;
    int         index = checked_index(row), counts = counts_of(index);
    InputFragment<Net> x;
    load_inputs(x, runner, call.observations, index);
    for (Index tile = worker; tile * GROUP_TILE < call.rows; tile += workers, row += step) {
        const int current = index;
        normalise_inputs(x, runner, scale, {largest, counts});
        Left inputs[PADDED_INPUTS<Net> / DEPTH];
        gather(inputs, x);
        index = checked_index(row + step);
        forward<Net, 0>(runner, inputs, InferenceTile{}, [&](Outputs<Net>& c) {
            counts = counts_of(index);  // of the next rows, whose loads overlap with use()
            load_inputs(x, runner, call.observations, index);
            use(runner, c, row, current);
        });
    }
}

// The type that runs a net's rows. (Lambdas must name it: NVRTC 13.0 rejects generic lambdas here.)
template <class Net, bool = RESIDENT<typename Net::Shape>> struct RunnerOf { using Type = ResidentRows<Net>; };
template <class Net> struct RunnerOf<Net, false> { using Type = StreamedRows<WeightStream<Net, Net::FORWARD_STEPS>>; };
template <class Net> using Runner = typename RunnerOf<Net>::Type;

// Runs a worker's tiles: use(runner, c, row, index) gets outputs; index_of(row) is the index of a row's observation or
// negative. Raises `largest`, unless null, to the largest magnitude in observations of agents that are `alive`.
template <class Net, class Call, class IndexOf, class Use>
FN void run_network(const Call& call, int worker, int workers, const IndexOf& index_of, u32* largest, const u8* alive,
                    const Use& use) {
    constexpr bool resident = RESIDENT<typename Net::Shape>;
    if constexpr (resident) run_resident<Net>(call, worker, workers, index_of, largest, alive, use);
    else run_streamed<Net>(call, worker, workers, index_of, largest, alive, use);
}
