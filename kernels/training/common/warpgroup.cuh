// Matrix products of a warpgroup (four warps) on Hopper's tensor cores, architecture sm_90a, and a ring buffer in
// shared memory that bulk copies (TMA) fill.
//
// A product adds Left (64 x DEPTH) times Right (DEPTH x N) to an accumulator of 64 x N floats; each warp holds 16 rows
// in the layout of tensor_core.cuh. Right is a tile in shared memory, Left is in registers or a tile. Products are
// asynchronous: accumulators may be read after wait_products().
//
// Generated before it: Product<N> for each N in use, with two functions add(c, left, right, keep); in bf16 also
// add_across, for a transposed Right: a tile that has a line per number of the depth, not per column.

constexpr int GROUP = 4 * WARP, GROUP_ROWS = 4 * WARP_ROWS;

// The block's shared memory, from the first address with this alignment.
FN unsigned char* aligned_shared_memory(u32 alignment) {
    const u32 begin = u32(__cvta_generic_to_shared(staging)), padding = (0u - begin) % alignment;
    return reinterpret_cast<unsigned char*>(staging) + padding;
}
FN int  group_of_block()         { return shuffle(thread_rank() / GROUP, 0); }
FN void group_barrier() {
    asm volatile("bar.sync %0, %1;" ::"r"(group_of_block() + 1), "n"(GROUP) : "memory");
}
FN void start_products()         { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void commit_products()        { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING committed groups of products are unfinished.
template <int PENDING> FN void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving reads of an accumulator before this point, where it is complete.
template <int N> FN void fence_registers(float (&c)[N][4]) {
    FOR_EACH_NUMBER(j, q, N) asm volatile("" : "+f"(c[j][q])::"memory");
}

// Rounds accumulators once to TF32, so that none of several stores rounds again; does nothing in bf16.
template <int N> FN void round_once(float (&c)[N][4]) {
    FOR_EACH_NUMBER(j, q, N) c[j][q] = Arithmetic::rounded_once(c[j][q]);
}

// The base of matrix descriptors of some tiles, in units of 16 bytes, and the address of tiles of the same layout as
// the origin of offsets (`reference`). The base is reloaded from shared memory for each tile of rows: otherwise the
// compiler would keep all descriptors in registers.
struct TileBase {
    const unsigned char* reference;
    u32                  base;
    FN TileBase(const void* layout, const void* tiles, u32* stored)
        : reference(static_cast<const unsigned char*>(layout)) {
        *stored = 1u << 16 | (shared_address(tiles) & 0x3FFFF) / 16;
    }
    FN void reload(const u32* stored) {
        u32 loaded;
        asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(loaded) : "r"(shared_address(stored)));
        base = u32(shuffle(int(loaded), 0));  // the same for the whole warp
    }
};

// A factor in shared memory: LINES rows of Left or columns of Right, with the depth along a line. Lines are cut into
// pieces of 128 bytes, with wgmma's 128-byte swizzle, which avoids bank conflicts.
template <int LINES, int DEPTHS> struct alignas(1024) GroupTile {
    static constexpr int PIECE = 128, PIECE_ELEMENTS = PIECE / int(sizeof(Stored)), LINE_COUNT = LINES;
    static_assert(LINES % 8 == 0 && DEPTHS % DEPTH == 0);
    unsigned char bytes[(DEPTHS + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS * LINES * PIECE];

    FN static constexpr int offset(int line, int depth) {
        return (depth / PIECE_ELEMENTS * LINES + line) * PIECE +
               ((depth % PIECE_ELEMENTS * int(sizeof(Stored))) ^ (line % 8 * 16));
    }
    FN Stored*       at(int line, int depth) { return reinterpret_cast<Stored*>(bytes + offset(line, depth)); }
    FN const Stored* at(int line, int depth) const {
        return reinterpret_cast<const Stored*>(bytes + offset(line, depth));
    }

    // The matrix descriptor of a product's depths: swizzle, a stride of 1,024 bytes for 8 lines, and the address.
    FN u64 descriptor(const TileBase& tiles, int step) const {
        constexpr u64 layout = u64(1) << 62 | u64(1024 / 16) << 32;
        return layout | (tiles.base + u32(bytes - tiles.reference + offset(0, step * DEPTH)) / 16);
    }

    // Stores the transpose of each warp's 16 rows: lines are columns, depths are rows. Rows g and g + 8 of a warp are
    // adjacent, as in all tiles whose depths are rows of samples.
    template <int N> FN void store_rows(const float (&c)[N][4]) {
        store_pairs(c, [](Stored* at, float x, float y) { Arithmetic::store_pair(at, x, y); });
    }
    template <int N> FN void store_rounded(const float (&c)[N][4]) {
        store_pairs(c, [](Stored* at, float x, float y) { Arithmetic::store_rounded(at, x, y); });
    }
    template <int N, class Store> FN void store_pairs(const float (&c)[N][4], const Store& store) {
        UNROLL
        for (int p = 0; p < 2; ++p) {
            Stored* const first = thread_pairs(p);
            UNROLL
            for (int j = 0; j < N; ++j) store(first + j * 8 * PIECE_ELEMENTS, c[j][p], c[j][2 + p]);
        }
    }
    template <int N> FN void load_rows(float (&c)[N][4], int from = 0) const {  // skips `from` groups of 8 columns
        UNROLL
        for (int p = 0; p < 2; ++p) {
            const Stored* const first = thread_pairs(p);
            UNROLL
            for (int j = 0; j < N; ++j) {
                const Wide<2> pair = Arithmetic::load_pair(first + (from + j) * 8 * PIECE_ELEMENTS);
                c[j][p]     = pair.value[0];
                c[j][2 + p] = pair.value[1];
            }
        }
    }
    // This thread's first pair of an even column (p = 0) or an odd column (p = 1).
    FN const Stored* thread_pairs(int p) const { return const_cast<GroupTile*>(this)->thread_pairs(p); }
    FN Stored*       thread_pairs(int p) {
        const u32 lane = threadIdx.x % WARP, row = threadIdx.x % GROUP / WARP * WARP_ROWS + lane / 4 * 2;
        const u32 line = lane % 4 * 2 + u32(p);
        return reinterpret_cast<Stored*>(bytes + (row / PIECE_ELEMENTS * LINES + line) * PIECE +
                                         ((row % PIECE_ELEMENTS * u32(sizeof(Stored))) ^ (line * 16)));
    }
    FN static constexpr int row_slot(int row) { return row / WARP_ROWS * WARP_ROWS + row % 8 * 2 + row / 8 % 2; }
};

using Left = Arithmetic::Left;

// Starts c += rows * right (c = rows * right without `keep`), for rows in registers; complete after wait_products().
template <int N, int STEPS, class Right>
FN void multiply_rows(float (&c)[N][4], const Left (&rows)[STEPS], const Right& right, const TileBase& tiles,
                      bool keep = true) {
    UNROLL
    for (int step = 0; step < STEPS; ++step) {
        Product<8 * N>::add(c, rows[step].x, right.descriptor(tiles, step), keep || step > 0);
    }
}

// Starts c += left * right over a depth of 64 rows; complete after wait_products(). `tiles`: base of both tiles.
template <int N, class LeftTile, class Right>
FN void multiply_tiles(float (&c)[N][4], const LeftTile& left, const Right& right, const TileBase& tiles) {
    UNROLL
    for (int step = 0; step < GROUP_ROWS / DEPTH; ++step) {
        Product<8 * N>::add(c, left.descriptor(tiles, step), right.descriptor(tiles, step), true);
    }
}

// Makes the compiler compute all factors here: computed between products, each would make the next product wait.
template <int STEPS> FN void fence_registers(Left (&lefts)[STEPS]) {
    FOR_EACH_NUMBER(step, word, STEPS) asm volatile("" : "+r"(lefts[step].x[word])::"memory");
}

// Rounds accumulators to left factors: their 8 N columns are the depth of the next STEPS products.
template <int STEPS, int N> FN void gather(Left (&lefts)[STEPS], const float (&c)[N][4]) {
    static_assert(STEPS * DEPTH == 8 * N);
    UNROLL
    for (int step = 0; step < STEPS; ++step) lefts[step] = Arithmetic::gather(c + step * (DEPTH / 8));
}

// --- bulk copies to shared memory ---

FN void init_mbarrier(u64* mbarrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(mbarrier)) : "memory");
}
// Waits until the copies of round `round`, counted from 0, have arrived.
FN void wait_mbarrier(u64* mbarrier, u32 round) {
    u32 complete;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(complete) : "r"(shared_address(mbarrier)), "r"(round % 2) : "memory");
    } while (complete == 0);
}

FN void expect_bytes(u64* mbarrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared_address(mbarrier)), "r"(bytes) : "memory");
}
// Starts a bulk copy (TMA) to shared memory, whose bytes the mbarrier counts.
FN void copy_bytes(void* to, const void* from, u32 bytes, u64* mbarrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(mbarrier)) : "memory");
}

// A ring of stages in shared memory, filled while other stages are in use. Each warpgroup waits until a stage is full,
// and releases it after use; the last of READERS warpgroups to release a stage starts its next copy, so that no
// warpgroup waits for another.
template <int STAGES, int BYTES, int READERS> struct Ring {
    alignas(1024) unsigned char stages[STAGES][BYTES];
    u64 full[STAGES];      // mbarriers
    u32 releases[STAGES];  // of each stage, since the start

    // Fills all stages. One thread calls it, before a block barrier; fill(number) opens a stage and copies to it.
    template <class Fill> FN void start(const Fill& fill) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_mbarrier(full + stage);
            releases[stage] = 0;
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (u32 number = 0; number < STAGES; ++number) fill(number);
    }
    FN void open(u32 number, u32 bytes) { expect_bytes(full + number % STAGES, bytes); }
    FN void copy(u32 number, u32 to, const void* from, u32 bytes) {
        copy_bytes(stages[number % STAGES] + to, from, bytes, full + number % STAGES);
    }
    FN void wait(u32 number) { wait_mbarrier(full + number % STAGES, number / STAGES); }

    // Releases a stage; a warpgroup calls it after its products with the stage are finished.
    template <class Fill> FN void release(u32 number, const Fill& fill) {
        if (thread_rank() % GROUP != 0) return;
        u32 previous;
        asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;"
                     : "=r"(previous) : "r"(shared_address(releases + number % STAGES)) : "memory");
        if (previous % READERS == READERS - 1) fill(number + STAGES);
    }
};
