// Rows on their way forth through all layers of a wide perceptron whose weights find room in a block's memory, all of them.
// A warpgroup's 64 rows never leave its registers, and it waits for nobody.

constexpr u32 FORTH_BYTES = maximum(packed_bytes(0, STEPS_FORTH), packed_bytes(NETS - 1, STEPS_FORTH));

struct ResidentWeights { alignas(1024) unsigned char weights[FORTH_BYTES]; };
struct ResidentMemory : ResidentWeights, WideNumbers {
    u64 gate;  // through which they come
    FN static ResidentMemory& of_block() {
        const u32 begin = shared_address(staging), aside = (0u - begin) % 1024u;
        return *reinterpret_cast<ResidentMemory*>(reinterpret_cast<unsigned char*>(staging) + aside);
    }
};
static_assert(sizeof(ResidentMemory) + 1024 <= SHARED_BYTES);

// All layers from `L` on; `use(c)` is given the outputs.
template <int NET, int L, int STEPS_OF_ROWS, class Use>
FN void go_forth(const InBlock& own, u32 weights, const Left (&rows)[STEPS_OF_ROWS], const Use& use) {
    constexpr int N = outs_of(NET, L) / 8, PART = DEPTH * int(sizeof(Stored)), OF_LINE = LINE / PART;
    static_assert(STEPS_OF_ROWS * DEPTH == depth_of(NET, L));
    const Lines<LINE> right(weights + packed_bytes(NET, L));
    float             c[N][4], inverse[2];
    begin(c, own.numbers.bias + bias_of(NET, L), own.lane);
    settle(c);
    begin_products();
    UNROLL
    for (int part = 0; part < STEPS_OF_ROWS; ++part) {
        Product<8 * N>::add(c, rows[part].x, right.at(u32(part / OF_LINE * 8 * N * LINE + part % OF_LINE * PART)), true);
    }
    commit_products();
    finish<0>();
    settle(c);
    if constexpr (L + 1 < LAYERS) {
        if (NORM) {
            normalise(c, inverse);
            stretch(c, own.numbers.gains + bias_of(NET, L), own.numbers.shifts + bias_of(NET, L));
        }
        activate(c);
        Left activations[8 * N / DEPTH];
        gather(activations, c);
        go_forth<NET, L + 1>(own, weights, activations, use);
    } else {
        use(c);
    }
}

using InputsOfWarp = float[INPUTS / 8][4];

// This thread's part of the inputs of rows at those places; of a row that is nowhere, zeros.
FN void load_inputs(InputsOfWarp& x, const InBlock& own, const float* observations, int place) {
    const int places[2] = {from_lane(place, own.lane / 4), from_lane(place, own.lane / 4 + 8)};
    UNROLL
    for (int j = 0; j < INPUTS / 8; ++j) {
        UNROLL
        for (int q = 0; q < 4; ++q) {
            const int column = 8 * j + own.lane % 4 * 2 + q % 2;
            const bool there = places[q / 2] >= 0 && column < FEATURES;
            x[j][q] = there ? observations[Index(places[q / 2]) * FEATURES + column] : 0.0f;
        }
    }
}

// The same normalised, when it is known how large they are.
FN void normalise_inputs(InputsOfWarp& x, const InBlock& own, const Scale& scale, const Largest& seen) {
    const int counts[2] = {from_lane(seen.counts, own.lane / 4), from_lane(seen.counts, own.lane / 4 + 8)};
    u32       largest   = 0;
    UNROLL
    for (int j = 0; j < INPUTS / 8; ++j) {
        UNROLL
        for (int q = 0; q < 4; ++q) {
            const int column = 8 * j + own.lane % 4 * 2 + q % 2;
            largest = maximum(largest, counts[q / 2] ? bits_of(x[j][q]) & ~(1u << 31) : 0);
            if (scale.mean != nullptr) {
                x[j][q] = within((x[j][q] - own.numbers.mean[column]) * own.numbers.inverse[column], scale.limit);
            }
        }
    }
    if (seen.magnitude != nullptr) *seen.magnitude = maximum(*seen.magnitude, largest);
}

template <int NET> using Own = InBlock;

// One of so many workers runs its tiles: a row's observation is where `find` says, or nowhere if that is below 0.
template <int NET, class Call, class Find, class Use>
FN void run_wide(const Call& call, int worker, int workers, const Find& find, u32* largest, const u8* alive,
                 const Use& use) {
    auto&       memory = ResidentMemory::of_block();
    const Scale scale  = {call.mean, call.inverse, call.limit};
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
    const InBlock own(memory);
    const u32     weights  = u32(from_lane(int(shared_address(memory.weights)), 0));
    const auto    place_of = [&](Index row) { return row < call.rows ? find(row) : -1; };
    const auto    counts_of = [&](int place) { return int(place >= 0 && (alive == nullptr || alive[place] != 0)); };
    const Index   step     = workers * Index(GROUP_TILE);
    Index         row      = worker * Index(GROUP_TILE) + own.group * GROUP_ROWS + own.warp * WARP_ROWS + own.lane % WARP_ROWS;
    int           place    = place_of(row), counts = counts_of(place);
    InputsOfWarp  x;
    load_inputs(x, own, call.observations, place);
    for (Index tile = worker; tile * GROUP_TILE < call.rows; tile += workers, row += step) {
        const int now = place;
        normalise_inputs(x, own, scale, {largest, counts});
        Left inputs[INPUTS / DEPTH];
        gather(inputs, x);
        place = place_of(row + step);
        go_forth<NET, 0>(own, weights, inputs, [&](Outputs<NET>& c) {
            counts = counts_of(place);  // of the next rows, which come while these are used
            load_inputs(x, own, call.observations, place);
            use(own, c, row, now);
        });
    }
}
