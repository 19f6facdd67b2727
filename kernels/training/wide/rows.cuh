// Rows on their way forth through all layers of a wide perceptron: a warpgroup takes 64 of them.
//
// Where weights stream, rows of activations lie in shared memory, where they are the next product's left factor. Where all
// weights of a net find room, they never leave their threads' registers.

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
template <class Net> using Outputs = float[Net::outs_of(Net::LAYERS - 1) / 8][4];

// Where a warp is, in its block and in its group, and the values of its rows.
template <class Net> struct InBlock {
    using Numbers = WideNumbers<typename Net::Shape>;
    Numbers&  numbers;
    const int group, warp, lane;

    FN explicit InBlock(Numbers& numbers_)
        : numbers(numbers_), group(group_of_block()), warp(thread_rank() / WARP % 4), lane(warp_lane()) {}

    // The value of each of 16 rows, which is the output of a number.
    template <int N> FN void store_values(const float (&c)[N][4], int of) const {
        FOR_EACH_NUMBER(j, q, N) {
            if (8 * j + lane % 4 * 2 + q % 2 == of) values()[lane / 4 + q / 2 * 8] = c[j][q];
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
template <class Source> struct Rowwise : InBlock<typename Source::Of> {
    using Net    = typename Source::Of;
    using Memory = WideMemory<typename Net::Shape>;
    using InBlock<Net>::group, InBlock<Net>::warp, InBlock<Net>::lane;
    using InBlock<Net>::await_turn, InBlock<Net>::pass_turn;
    static constexpr int INPUTS = Net::INPUTS, FEATURES = Net::FEATURES;
    Memory&              memory;
    const Source         source;
    unsigned char* const rows;
    u32                  number = 0;  // of the stage that comes next

    FN explicit Rowwise(const Source& source_)
        : InBlock<Net>(source_.memory), memory(source_.memory), source(source_), rows(memory.rows[group]) {
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
        const Lines<LINE> right(u32(from_lane(int(ring + number % STAGES<typename Net::Shape> * STAGE), 0)));
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
template <class Net, int N, int COLUMNS, class Own, class Each>
FN void for_accumulators(const Own& own, Index rows, Index unit, const Each& each) {
    const Index first = unit * GROUP_ROWS + own.warp * WARP_ROWS + own.lane / 4;
    FOR_EACH_NUMBER(j, q, N) {
        const int   column = 8 * j + own.lane % 4 * 2 + q % 2;
        const Index row    = first + q / 2 * 8;
        each(j, q, row < rows && column < COLUMNS ? (row * Net::NETS + Net::NUMBER) * COLUMNS + column : Index(-1));
    }
}

// Of a row, which four threads of a warp share, two columns in eight each.
template <class T> FN T over_row_sum(T x) {
    x += from_lane_across(x, 1);
    return x + from_lane_across(x, 2);
}

// Sums less their row's mean, over its deviation.
template <int N> FN void normalise(float (&c)[N][4], float (&inverse)[2]) {
    constexpr float share = 1.0f / float(8 * N), epsilon = 1e-5f;  // (as torch adds to a variance)
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
        inverse[h] = 1.0f / square_root(over_row_sum(square) * share + epsilon);
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
    constexpr int rest = Own::INPUTS - FROM;
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
template <class Net, int L, class Own, class Tile, class Use>
FN void go_forth(Own& own, const Tile& tile, const Use& use) {
    constexpr int N = Net::outs_of(L) / 8;
    if constexpr (L + 1 < Net::LAYERS) {
        constexpr int END = Tile::SHARES ? Net::alike_until(L) : L + 1;
        ROLLED
        for (int ahead = 0; ahead < END - L; ++ahead) {
            const int first = Net::bias_of(L) + ahead * 8 * N;
            float     c[N][4], inverse[2] = {};
            begin(c, own.memory.bias + first, own.lane);
            if constexpr (L > 0) own.template multiply<Net::in_of(L)>(c, ahead > 0);
            else if constexpr (Net::INPUTS <= CHUNK) own.template multiply<Net::INPUTS>(c, ahead > 0);
            else if (ahead > 0) own.template multiply<8 * N>(c);
            else multiply_inputs<0>(own, tile, c);
            if (Net::NORM) normalise(c, inverse);
            tile.template sums<L>(c, inverse, ahead);
            if (Net::NORM) stretch(c, own.memory.gains + first, own.memory.shifts + first);
            activate(c);
            round_once(c);  // (of what relu made zero a denormal, which is zero to all that follows)
            group_barrier();  // all products with the rows are done
            tile.template activations<L>(c, ahead);
            own.store(c);
            publish();
            group_barrier();
        }
        go_forth<Net, END>(own, tile, use);
    } else {
        float c[N][4];
        begin(c, own.memory.bias + Net::bias_of(L), own.lane);
        own.template multiply<Net::in_of(L)>(c);
        group_barrier();
        use(c);
    }
}

// Rows of which nothing is kept.
struct Passing {
    template <int L, int N> FN void sums(const float (&)[N][4], const float (&)[2], int) const {}
    template <int L, int N> FN void activations(const float (&)[N][4], int) const {}
};

struct PassingRows : Passing {
    static constexpr bool SHARES = sizeof(Stored) == 2;  // (in TF32 acting is 7 % slower so, where updates are quicker)
    const Inputs<GroupTile<8, DEPTH>>& inputs;
    FN explicit PassingRows(const Inputs<GroupTile<8, DEPTH>>& inputs_) : inputs(inputs_) {}
    template <int FROM, class Own> FN void load(Own& own) const { own.template load_inputs<false, FROM>(inputs); }
};

template <class Net, class Call, class Find, class Use>
FN void run_rows(const Call& call, int worker, int workers, const Find& find, u32* largest, const u8* alive,
                 const Use& use) {
    const Scale scale = {call.mean, call.inverse, call.limit};
    const Index tiles = (call.rows + GROUP_TILE - 1) / GROUP_TILE;
    Rowwise     own(begin_network<Net, Net::STEPS_FORTH>(call, scale, turns_of(worker, workers, tiles)));
    const auto  place_of = [&](Index row) { return row < call.rows ? find(row) : -1; };
    const Index begin   = own.group * GROUP_ROWS + own.warp * WARP_ROWS + own.lane % WARP_ROWS;
    int         place   = place_of(worker * Index(GROUP_TILE) + begin);
    for (Index tile = worker; tile < tiles; tile += workers) {
        const Index row    = tile * GROUP_TILE + begin;
        const int   counts = place >= 0 && (alive == nullptr || alive[place] != 0), now = place;
        const Inputs<GroupTile<8, DEPTH>> inputs = {call.observations, now, scale, nullptr, {largest, counts}};
        own.template load_inputs<false, 0>(inputs);
        place = place_of(row + workers * Index(GROUP_TILE));
        publish();
        group_barrier();
        go_forth<Net, 0>(own, PassingRows(inputs), [&](Outputs<Net>& c) {
            use(own, c, row, now);
            group_barrier();
        });
    }
}

// --- all weights in shared memory ---

// A warpgroup at work on rows in its registers. Groups multiply by turns: while one does, the other is at what is between.
template <class Net> struct ResidentRows : InBlock<Net> {
    using Memory = ResidentMemory<typename Net::Shape>;
    using InBlock<Net>::group, InBlock<Net>::await_turn, InBlock<Net>::pass_turn;
    const u32 weights;

    FN explicit ResidentRows(Memory& memory)
        : InBlock<Net>(memory), weights(u32(from_lane(int(shared_address(memory.weights)), 0))) {
        if (group == GROUPS - 1) pass_turn();  // the first turn is the first group's
    }
    FN ~ResidentRows() {
        if (group == 0) await_turn();  // and so is the last, which nobody takes
    }
    template <int N, class Add> FN void multiply(float (&c)[N][4], const Add& add) const {
        settle(c);
        await_turn();
        begin_products();
        add();
        commit_products();
        pass_turn();
        finish<0>();
        settle(c);
    }
    template <int N> FN void store(const float (&)[N][4]) const {}  // they stay where they are
};

// By all threads of a block.
template <class Net, class Call> FN ResidentRows<Net> begin_resident(const Call& call, const Scale& scale) {
    auto& memory = ResidentRows<Net>::Memory::of_block();
    if (thread_rank() == 0) {
        const u32 bytes = Net::packed_bytes(Net::STEPS_FORTH);
        begin_gate(&memory.gate);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        expect_bytes(&memory.gate, bytes);
        copy_bytes(memory.weights, call.packed + Net::packed_place(0), bytes, &memory.gate);
    }
    load_numbers<Net>(memory, call, scale);
    block_barrier();
    await_gate(&memory.gate, 0);
    return ResidentRows<Net>(memory);
}

// All layers from `L` on: `tile` is told of hidden ones as above, and `use(c)` is given the outputs.
template <class Net, int L, int STEPS_OF_ROWS, class Tile, class Use>
FN void go_forth(const ResidentRows<Net>& own, const Left (&rows)[STEPS_OF_ROWS], const Tile& tile, const Use& use) {
    constexpr int N = Net::outs_of(L) / 8, PART = DEPTH * int(sizeof(Stored)), OF_LINE = LINE / PART;
    static_assert(STEPS_OF_ROWS * DEPTH >= Net::depth_of(L));
    const Lines<LINE> right(own.weights + Net::packed_bytes(L));
    float             c[N][4], inverse[2] = {};
    begin(c, own.numbers.bias + Net::bias_of(L), own.lane);
    own.multiply(c, [&] {
        UNROLL
        for (int part = 0; part < Net::depth_of(L) / DEPTH; ++part) {
            Product<8 * N>::add(c, rows[part].x, right.at(u32(part / OF_LINE * 8 * N * LINE + part % OF_LINE * PART)), true);
        }
    });
    if constexpr (L + 1 < Net::LAYERS) {
        if (Net::NORM) normalise(c, inverse);
        tile.template sums<L>(c, inverse, 0);
        if (Net::NORM) stretch(c, own.numbers.gains + Net::bias_of(L), own.numbers.shifts + Net::bias_of(L));
        activate(c);
        round_once(c);
        tile.template activations<L>(c, 0);
        Left activations[8 * N / DEPTH];
        gather(activations, c);
        go_forth<Net, L + 1>(own, activations, tile, use);
    } else {
        use(c);
    }
}

// This thread's part of a warp's inputs, and room for a one beside them.
template <class Net> constexpr int WITH_ONE = Net::kept_lines(0);
template <class Net> using InputsOfWarp = float[WITH_ONE<Net> / 8][4];

// This thread's part of the inputs of rows at those places; of a row that is nowhere, zeros.
template <class Net> FN void load_inputs(InputsOfWarp<Net>& x, const InBlock<Net>& own, const float* observations, int place) {
    const int column = own.lane % 4 * 2;
    UNROLL
    for (int h = 0; h < 2; ++h) {
        const int          of_row = from_lane(place, own.lane / 4 + 8 * h);
        const float* const row    = observations + Index(of_row) * Net::FEATURES + column;
        UNROLL
        for (int j = 0; j < WITH_ONE<Net> / 8; ++j) {
            UNROLL
            for (int p = 0; p < 2; ++p) {
                const bool known = of_row >= 0 && (8 * j + 8 <= Net::FEATURES || 8 * j + column + p < Net::FEATURES);
                x[j][2 * h + p]  = known ? row[8 * j + p] : 0.0f;
            }
        }
    }
}

// The same normalised, when it is known how large they are.
template <class Net>
FN void normalise_inputs(InputsOfWarp<Net>& x, const InBlock<Net>& own, const Scale& scale, const Largest& seen) {
    if (seen.magnitude != nullptr) {
        const int counts[2] = {from_lane(seen.counts, own.lane / 4), from_lane(seen.counts, own.lane / 4 + 8)};
        u32       largest   = *seen.magnitude;  // (in a register: the compiler keeps what is pointed to in memory)
        FOR_EACH_NUMBER(j, q, WITH_ONE<Net> / 8)
            largest = maximum(largest, counts[q / 2] ? bits_of(x[j][q]) & ~(1u << 31) : 0);
        *seen.magnitude = largest;
    }
    if (scale.mean == nullptr) return;
    UNROLL
    for (int j = 0; j < Net::INPUTS / 8; ++j) {
        const int     column = 8 * j + own.lane % 4 * 2;
        const Wide<2> mean = read_anew(own.numbers.mean + column), inverse = read_anew(own.numbers.inverse + column);
        UNROLL
        for (int q = 0; q < 4; ++q) x[j][q] = within((x[j][q] - mean.value[q % 2]) * inverse.value[q % 2], scale.limit);
    }
}

template <class Net, class Call, class Find, class Use>
FN void run_resident(const Call& call, int worker, int workers, const Find& find, u32* largest, const u8* alive,
                     const Use& use) {
    const Scale scale     = {call.mean, call.inverse, call.limit};
    const auto  own       = begin_resident<Net>(call, scale);
    const auto  place_of  = [&](Index row) { return row < call.rows ? find(row) : -1; };
    const auto  counts_of = [&](int place) { return int(place >= 0 && (alive == nullptr || alive[place] != 0)); };
    const Index step      = workers * Index(GROUP_TILE);
    Index       row   = worker * Index(GROUP_TILE) + own.group * GROUP_ROWS + own.warp * WARP_ROWS + own.lane % WARP_ROWS;
    int         place = place_of(row), counts = counts_of(place);
    InputsOfWarp<Net> x;
    load_inputs(x, own, call.observations, place);
    for (Index tile = worker; tile * GROUP_TILE < call.rows; tile += workers, row += step) {
        const int now = place;
        normalise_inputs(x, own, scale, {largest, counts});
        Left inputs[WITH_ONE<Net> / DEPTH];
        gather(inputs, x);
        place = place_of(row + step);
        go_forth<Net, 0>(own, inputs, Passing{}, [&](Outputs<Net>& c) {
            counts = counts_of(place);  // of the next rows, which come while these are used
            load_inputs(x, own, call.observations, place);
            use(own, c, row, now);
        });
    }
}

// What runs a net's rows. (A lambda that takes it names it: NVRTC 13.0 knows no generic ones here.)
template <class Net, bool = RESIDENT<typename Net::Shape>> struct RunningRows { using Type = ResidentRows<Net>; };
template <class Net> struct RunningRows<Net, false> { using Type = Rowwise<Weights<Net, Net::STEPS_FORTH>>; };
template <class Net> using Own = typename RunningRows<Net>::Type;

// One of so many workers runs its tiles: a row's observation is where `find` says, or nowhere if that is below 0.
template <class Net, class Call, class Find, class Use>
FN void run_wide(const Call& call, int worker, int workers, const Find& find, u32* largest, const u8* alive, const Use& use) {
    if constexpr (RESIDENT<typename Net::Shape>) run_resident<Net>(call, worker, workers, find, largest, alive, use);
    else run_rows<Net>(call, worker, workers, find, largest, alive, use);
}
