// Rows on their way forth through all layers of a wide perceptron whose weights find room in a block's memory, all of them.
// A warpgroup's 64 rows never leave its registers.

constexpr u32 FORTH_BYTES = maximum(packed_bytes(0, STEPS_FORTH), packed_bytes(NETS - 1, STEPS_FORTH));

struct ResidentWeights { alignas(1024) unsigned char weights[FORTH_BYTES]; };
struct ResidentMemory : ResidentWeights, WideNumbers {
    u64 gate;  // through which they come
    FN static ResidentMemory& of_block() { return *reinterpret_cast<ResidentMemory*>(memory_of_block(1024)); }
};
static_assert(sizeof(ResidentMemory) + 1024 <= SHARED_BYTES);

// A layer's packed weights, LINES outputs of them, as the right factor on the way back: the depth goes across lines.
template <int LINES> struct LinesAcross {
    static_assert(LINE == 128);
    u32 low;
    FN explicit LinesAcross(u32 address) : low(u32(LINES * LINE / 16) << 16 | (address & 0x3FFFF) / 16) {}
    FN u64 at(int step) const { return u64(1u << 30 | 8 * LINE / 16) << 32 | (low + u32(step * DEPTH * LINE / 16)); }
};

// A warpgroup at work on rows in its registers. Groups multiply by turns: while one does, the other is at what is between.
struct ResidentRows : InBlock {
    const u32 weights;

    FN explicit ResidentRows(ResidentMemory& memory)
        : InBlock(memory), weights(u32(from_lane(int(shared_address(memory.weights)), 0))) {
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
template <int NET, class Call> FN ResidentRows begin_resident(const Call& call, const Scale& scale) {
    auto& memory = ResidentMemory::of_block();
    if (thread_rank() == 0) {
        const u32 bytes = packed_bytes(NET, STEPS_FORTH);
        begin_gate(&memory.gate);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        expect_bytes(&memory.gate, bytes);
        copy_bytes(memory.weights, call.packed + packed_place(NET, 0), bytes, &memory.gate);
    }
    load_numbers<NET>(memory, call, scale);
    block_barrier();
    await_gate(&memory.gate, 0);
    return ResidentRows(memory);
}

// All layers from `L` on: `tile` is told of hidden ones as in rowwise.cuh, and `use(c)` is given the outputs.
template <int NET, int L, int STEPS_OF_ROWS, class Tile, class Use>
FN void go_forth(const ResidentRows& own, const Left (&rows)[STEPS_OF_ROWS], const Tile& tile, const Use& use) {
    constexpr int N = outs_of(NET, L) / 8, PART = DEPTH * int(sizeof(Stored)), OF_LINE = LINE / PART;
    static_assert(STEPS_OF_ROWS * DEPTH >= depth_of(NET, L));
    const Lines<LINE> right(own.weights + packed_bytes(NET, L));
    float             c[N][4], inverse[2] = {};
    begin(c, own.numbers.bias + bias_of(NET, L), own.lane);
    own.multiply(c, [&] {
        UNROLL
        for (int part = 0; part < depth_of(NET, L) / DEPTH; ++part) {
            Product<8 * N>::add(c, rows[part].x, right.at(u32(part / OF_LINE * 8 * N * LINE + part % OF_LINE * PART)), true);
        }
    });
    if constexpr (L + 1 < LAYERS) {
        if (NORM) normalise(c, inverse);
        tile.template sums<L>(c, inverse, 0);
        if (NORM) stretch(c, own.numbers.gains + bias_of(NET, L), own.numbers.shifts + bias_of(NET, L));
        activate(c);
        round_once(c);
        tile.template activations<L>(c, 0);
        Left activations[8 * N / DEPTH];
        gather(activations, c);
        go_forth<NET, L + 1>(own, activations, tile, use);
    } else {
        use(c);
    }
}

constexpr int WITH_ONE = kept_lines(0, 0);  // inputs, and room for a one beside them
using InputsOfWarp = float[WITH_ONE / 8][4];

// This thread's part of the inputs of rows at those places; of a row that is nowhere, zeros.
FN void load_inputs(InputsOfWarp& x, const InBlock& own, const float* observations, int place) {
    const int column = own.lane % 4 * 2;
    UNROLL
    for (int h = 0; h < 2; ++h) {
        const int          of_row = from_lane(place, own.lane / 4 + 8 * h);
        const float* const row    = observations + Index(of_row) * FEATURES + column;
        UNROLL
        for (int j = 0; j < WITH_ONE / 8; ++j) {
            UNROLL
            for (int p = 0; p < 2; ++p) {
                const bool known = of_row >= 0 && (8 * j + 8 <= FEATURES || 8 * j + column + p < FEATURES);
                x[j][2 * h + p]  = known ? row[8 * j + p] : 0.0f;
            }
        }
    }
}

// The same normalised, when it is known how large they are.
FN void normalise_inputs(InputsOfWarp& x, const InBlock& own, const Scale& scale, const Largest& seen) {
    if (seen.magnitude != nullptr) {
        const int counts[2] = {from_lane(seen.counts, own.lane / 4), from_lane(seen.counts, own.lane / 4 + 8)};
        u32       largest   = *seen.magnitude;  // (in a register: the compiler keeps what is pointed to in memory)
        UNROLL
        for (int j = 0; j < WITH_ONE / 8; ++j) {
            UNROLL
            for (int q = 0; q < 4; ++q) largest = maximum(largest, counts[q / 2] ? bits_of(x[j][q]) & ~(1u << 31) : 0);
        }
        *seen.magnitude = largest;
    }
    if (scale.mean == nullptr) return;
    UNROLL
    for (int j = 0; j < INPUTS / 8; ++j) {
        const int     column = 8 * j + own.lane % 4 * 2;
        const Wide<2> mean = read_anew(own.numbers.mean + column), inverse = read_anew(own.numbers.inverse + column);
        UNROLL
        for (int q = 0; q < 4; ++q) x[j][q] = within((x[j][q] - mean.value[q % 2]) * inverse.value[q % 2], scale.limit);
    }
}

template <int NET> using Own = ResidentRows;

// One of so many workers runs its tiles: a row's observation is where `find` says, or nowhere if that is below 0.
template <int NET, class Call, class Find, class Use>
FN void run_wide(const Call& call, int worker, int workers, const Find& find, u32* largest, const u8* alive,
                 const Use& use) {
    const Scale        scale = {call.mean, call.inverse, call.limit};
    const ResidentRows own   = begin_resident<NET>(call, scale);
    const auto  place_of  = [&](Index row) { return row < call.rows ? find(row) : -1; };
    const auto  counts_of = [&](int place) { return int(place >= 0 && (alive == nullptr || alive[place] != 0)); };
    const Index step      = workers * Index(GROUP_TILE);
    Index       row   = worker * Index(GROUP_TILE) + own.group * GROUP_ROWS + own.warp * WARP_ROWS + own.lane % WARP_ROWS;
    int         place = place_of(row), counts = counts_of(place);
    InputsOfWarp x;
    load_inputs(x, own, call.observations, place);
    for (Index tile = worker; tile * GROUP_TILE < call.rows; tile += workers, row += step) {
        const int now = place;
        normalise_inputs(x, own, scale, {largest, counts});
        Left inputs[WITH_ONE / DEPTH];
        gather(inputs, x);
        place = place_of(row + step);
        go_forth<NET, 0>(own, inputs, Passing{}, [&](Outputs<NET>& c) {
            counts = counts_of(place);  // of the next rows, which come while these are used
            load_inputs(x, own, call.observations, place);
            use(own, c, row, now);
        });
    }
}
