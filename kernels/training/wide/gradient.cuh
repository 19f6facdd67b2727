// The gradients of wide perceptrons' weights: products of what update.cuh kept, 64 samples at a time.
//
// What all blocks find is added up by reduce.cuh, in an order that depends on nothing but their number.

constexpr int LEFT_BYTES = SLICE * PIECE, RIGHT_BYTES = 256 * PIECE, DEEP = 4;

struct GradientMemory {
    Ring<DEEP, LEFT_BYTES + RIGHT_BYTES, GROUPS> ring;
    alignas(1024) unsigned char ones[GROUP_ROWS * PIECE];

    FN static GradientMemory& of_block() { return *reinterpret_cast<GradientMemory*>(memory_of_block(1024)); }
};
static_assert(sizeof(GradientMemory) + 1024 <= SHARED_BYTES);

// What a worker reads of one layer, piece by piece of each of its units: those that were kept last, which a cache still
// has, come first.
template <int NET, int L> struct Units {
    using Of = Layer<NET, L>;
    static constexpr int PIECES = GROUP_ROWS / EACH;
    const GradientCall& call;
    GradientMemory&     memory;
    int                 slice, worker, workers;

    FN void operator()(u32 number) const {
        const Index before = worker + Index(number / PIECES) * workers, unit = call.units - 1 - before;
        const int   first = slice / Of::PARTS * SLICE, part = slice % Of::PARTS;
        const u32   piece = number % PIECES, lines = u32(minimum_of(SLICE, Of::ROWS - first));
        if (before >= call.units) return;
        const unsigned char* const left  = kept_of<NET>(call, Of::LEFT, unit) + first * PIECE;
        const unsigned char* const right = kept_of<NET>(call, Of::RIGHT, unit) + part * Of::COLUMNS * PIECE;
        memory.ring.open(number, (lines + Of::COLUMNS) * PIECE);
        memory.ring.copy(number, 0, left + piece * Of::ROWS * PIECE, lines * PIECE);
        memory.ring.copy(number, LEFT_BYTES, right + piece * Of::LINES * PIECE, Of::COLUMNS * PIECE);
    }
};

template <int NET, int L>
FN void find_gradient(const GradientCall& call, float* partial, int slice, int worker, int workers) {
    using Of              = Layer<NET, L>;
    auto&         memory  = GradientMemory::of_block();
    const int     group   = group_of_block();
    const Units<NET, L> units = {call, memory, slice, worker, workers};
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

template <int NET, int L> FN void find_any(const GradientCall& call, int block) {
    constexpr Found at     = found_at<NET, L>();
    constexpr int   blocks = slices_of(NET, L) * workers_of(NET, L);
    if (block < at.first_block + blocks) {
        const int slice = (block - at.first_block) / workers_of(NET, L), worker = (block - at.first_block) % workers_of(NET, L);
        find_gradient<NET, L>(call, call.partials + at.first + Index(slice) * workers_of(NET, L) * Layer<NET, L>::SIZE,
                              slice, worker, workers_of(NET, L));
    } else if constexpr (L + 1 < LAYERS) {
        find_any<NET, L + 1>(call, block);
    } else if constexpr (NET + 1 < NETS) {
        find_any<NET + 1, 0>(call, block);
    }
}

KERNEL_OF_BLOCKS(kernel_gradient, GradientCall, THREADS, 1) { find_any<0, 0>(call, block_number()); }
