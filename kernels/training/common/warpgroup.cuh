// Matrix products of a warpgroup, four warps, on a Hopper GPU's tensor cores (architecture sm_90a), and a ring of memory
// that the copy engine fills.
//
// A product adds Left (64 x DEPTH) times Right (DEPTH x N) to an accumulator of 64 x N floats, of which each warp holds
// 16 rows as tensor_core.cuh has them. Right comes from a tile in shared memory, Left from registers or from a tile. The
// tensor cores work while the warps go on: accumulators may be read after finish().
//
// Generated before it: Product<N> for each N that is used, with two functions add(c, left, right, keep); in bf16 a third,
// add_across, for a Right whose lines the depth goes across.

constexpr int GROUP = 4 * WARP, GROUP_ROWS = 4 * WARP_ROWS;

// A block's shared memory from the next address on that is so aligned.
FN unsigned char* memory_of_block(u32 alignment) {
    const u32 begin = u32(__cvta_generic_to_shared(staging)), aside = (0u - begin) % alignment;
    return reinterpret_cast<unsigned char*>(staging) + aside;
}
FN int  group_of_block()         { return from_lane(thread_rank() / GROUP, 0); }
FN void group_barrier()          { asm volatile("bar.sync %0, %1;" ::"r"(group_of_block() + 1), "n"(GROUP) : "memory"); }
FN void begin_products()         { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void commit_products()        { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all but so many commits have been worked off.
template <int LATER> FN void finish() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATER) : "memory"); }

// An accumulator that is complete: nothing that reads it may go before.
template <int N> FN void settle(float (&c)[N][4]) {
    FOR_EACH_NUMBER(j, q, N) asm volatile("" : "+f"(c[j][q])::"memory");
}

// Before it is stored more than once.
template <int N> FN void round_once(float (&c)[N][4]) {
    FOR_EACH_NUMBER(j, q, N) c[j][q] = Arithmetic::rounded_once(c[j][q]);
}

// Where some tiles lie, as the tensor cores are told it, in units of 16 bytes, and which tiles of the same form stand for
// them when places within them are worked out. It is read from shared memory for each tile of rows: what follows from it
// would take registers else.
struct Root {
    const unsigned char* at;
    u32                  place;
    FN Root(const void* form, const void* tiles, u32* kept) : at(static_cast<const unsigned char*>(form)) {
        *kept = 1u << 16 | (u32(__cvta_generic_to_shared(tiles)) & 0x3FFFF) / 16;
    }
    FN void recall(const u32* kept) {
        u32 found;
        asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(found) : "r"(u32(__cvta_generic_to_shared(kept))));
        place = u32(from_lane(int(found), 0));  // the same for the whole warp
    }
};

// A factor in shared memory: LINES rows of Left or columns of Right, along which the depth goes, cut into pieces of 128
// bytes whose words are mixed so that reads and writes meet in no bank.
template <int LINES, int DEPTHS> struct alignas(1024) GroupTile {
    static constexpr int PIECE = 128, EACH = PIECE / int(sizeof(Stored)), LINES_OF = LINES;
    static_assert(LINES % 8 == 0 && DEPTHS % DEPTH == 0);
    unsigned char bytes[(DEPTHS + EACH - 1) / EACH * LINES * PIECE];

    FN static constexpr int place(int line, int depth) {
        return (depth / EACH * LINES + line) * PIECE + ((depth % EACH * int(sizeof(Stored))) ^ (line % 8 * 16));
    }
    FN Stored*       at(int line, int depth)       { return reinterpret_cast<Stored*>(bytes + place(line, depth)); }
    FN const Stored* at(int line, int depth) const { return reinterpret_cast<const Stored*>(bytes + place(line, depth)); }

    // A product's part, as the tensor cores are told of it: its place, and that 8 lines take 1,024 bytes.
    FN u64 part(const Root& root, int step) const {
        constexpr u64 form = u64(1) << 62 | u64(1024 / 16) << 32;
        return form | (root.place + u32(bytes - root.at + place(0, step * DEPTH)) / 16);
    }

    // The transpose of 16 rows of each warp: lines are columns, the depth goes along rows. Rows g and g + 8 of a warp
    // come side by side, as in all tiles whose depth is a tile's rows.
    template <int N> FN void store_rows(const float (&c)[N][4]) {
        store_pairs(c, [](Stored* at, float x, float y) { Arithmetic::store_pair(at, x, y); });
    }
    template <int N> FN void store_rounded(const float (&c)[N][4]) {
        store_pairs(c, [](Stored* at, float x, float y) { Arithmetic::store_rounded(at, x, y); });
    }
    template <int N, class Store> FN void store_pairs(const float (&c)[N][4], const Store& store) {
        UNROLL
        for (int p = 0; p < 2; ++p) {
            Stored* const first = of_thread(p);
            UNROLL
            for (int j = 0; j < N; ++j) store(first + j * 8 * EACH, c[j][p], c[j][2 + p]);
        }
    }
    template <int N> FN void load_rows(float (&c)[N][4], int from = 0) const {  // `from`: columns of 8 to leave out
        UNROLL
        for (int p = 0; p < 2; ++p) {
            const Stored* const first = of_thread(p);
            UNROLL
            for (int j = 0; j < N; ++j) {
                const Wide<2> pair = Arithmetic::load_pair(first + (from + j) * 8 * EACH);
                c[j][p]     = pair.value[0];
                c[j][2 + p] = pair.value[1];
            }
        }
    }
    // The first of this thread's pairs: of an even column, or of the odd one beside it.
    FN const Stored* of_thread(int p) const { return const_cast<GroupTile*>(this)->of_thread(p); }
    FN Stored*       of_thread(int p) {
        const u32 lane = threadIdx.x % WARP, row = threadIdx.x % GROUP / WARP * WARP_ROWS + lane / 4 * 2;
        const u32 line = lane % 4 * 2 + u32(p);
        return reinterpret_cast<Stored*>(bytes + (row / EACH * LINES + line) * PIECE +
                                         ((row % EACH * u32(sizeof(Stored))) ^ (line * 16)));
    }
    FN static constexpr int row_slot(int row) { return row / WARP_ROWS * WARP_ROWS + row % 8 * 2 + row / 8 % 2; }
};

using Left = Arithmetic::Left;

// c += rows * right, for rows of a warpgroup in registers; or, unless `keep`, c = rows * right.
template <int N, int STEPS, class Right>
FN void multiply_rows(float (&c)[N][4], const Left (&rows)[STEPS], const Right& right, const Root& root,
                      bool keep = true) {
    UNROLL
    for (int step = 0; step < STEPS; ++step) {
        Product<8 * N>::add(c, rows[step].x, right.part(root, step), keep || step > 0);
    }
}

// c += left * right, for depths of 64 rows.
template <int N, class LeftTile, class Right>
FN void multiply_tiles(float (&c)[N][4], const LeftTile& left, const Right& right, const Root& root) {
    UNROLL
    for (int step = 0; step < GROUP_ROWS / DEPTH; ++step) {
        Product<8 * N>::add(c, left.part(root, step), right.part(root, step), true);
    }
}

// Factors that are complete before products begin: worked out between them, they would make each wait.
template <int STEPS> FN void settle(Left (&lefts)[STEPS]) {
    FOR_EACH_NUMBER(step, word, STEPS) asm volatile("" : "+r"(lefts[step].x[word])::"memory");
}

template <int STEPS, int N> FN void gather(Left (&lefts)[STEPS], const float (&c)[N][4]) {
    static_assert(STEPS * DEPTH == 8 * N);
    UNROLL
    for (int step = 0; step < STEPS; ++step) lefts[step] = Arithmetic::gather(c + step * (DEPTH / 8));
}

// --- memory on its way to a block ---

FN u32  shared_address(const void* at) { return u32(__cvta_generic_to_shared(at)); }
FN void begin_gate(u64* gate) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(gate)) : "memory");
}
FN void await_gate(u64* gate, u32 round) {
    u32 passed;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(passed)
                     : "r"(shared_address(gate)), "r"(round % 2)
                     : "memory");
    } while (passed == 0);
}

FN void expect_bytes(u64* gate, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(gate)), "r"(bytes) : "memory");
}
FN void copy_bytes(void* to, const void* from, u32 bytes, u64* gate) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(gate))
                 : "memory");
}

// A ring of stages in shared memory, filled while others are worked on. Each warpgroup waits until all bytes of a stage are
// there, and tells when it is done with it; the last to do so fills it anew, so that none waits for another.
template <int STAGES, int BYTES, int READERS> struct Ring {
    alignas(1024) unsigned char stages[STAGES][BYTES];
    u64 full[STAGES];
    u32 left[STAGES];

    // By one thread, before a barrier of the block; `fill(number)` opens a stage and copies, or does nothing at the end.
    template <class Fill> FN void begin(const Fill& fill) {
        for (int stage = 0; stage < STAGES; ++stage) {
            begin_gate(full + stage);
            left[stage] = 0;
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (u32 number = 0; number < STAGES; ++number) fill(number);
    }
    FN void open(u32 number, u32 bytes) { expect_bytes(full + number % STAGES, bytes); }
    FN void copy(u32 number, u32 to, const void* from, u32 bytes) {
        copy_bytes(stages[number % STAGES] + to, from, bytes, full + number % STAGES);
    }
    FN void await(u32 number) { await_gate(full + number % STAGES, number / STAGES); }

    // By a warpgroup whose products with the stage are finished.
    template <class Fill> FN void leave(u32 number, const Fill& fill) {
        if (thread_rank() % GROUP != 0) return;
        u32 before;
        asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "r"(shared_address(left + number % STAGES))
                     : "memory");
        if (before % READERS == READERS - 1) fill(number + STAGES);
    }
};
