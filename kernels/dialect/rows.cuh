// Scratch memory of a block, and the output of rows of floats from a tile or from that memory to global memory.

#if _for_gpu

// Writes one row of WIDTH floats per replica. Rows of 1, 2 and 4 floats take one store each if they are aligned; others
// pass through shared memory, so that neighbouring threads write neighbouring words.
template <int WIDTH, class Env>
FN void store_rows(float* rows, const float (&tile)[WIDTH][LANES], const Env& env) {
    constexpr int one_store = WIDTH == 1 || WIDTH == 2 || WIDTH == 4 ? WIDTH : 0;
    if (one_store != 0 && u64(rows) % (WIDTH * sizeof(float)) == 0) {
        FOR_EACH_LANE(k, env) {
            Wide<one_store + !one_store> row;
            UNROLL
            for (int j = 0; j < one_store; ++j) row.value[j] = tile[j][k];
            store_streaming(reinterpret_cast<Wide<one_store + !one_store>*>(rows) + env.index(k), row);
        }
        return;
    }
    const int lane = threadIdx.x % WARP;
    float*    warp = staging + (threadIdx.x - lane) * WIDTH;
    UNROLL
    for (int k = 0; k < LANES; ++k) {
        __syncwarp();
        UNROLL
        for (int j = 0; j < WIDTH; ++j) warp[lane * WIDTH + j] = tile[j][k];
        __syncwarp();
        const Index start = (env.index(k) - lane) * WIDTH, end = env.count * WIDTH;
        UNROLL
        for (int j = 0; j < WIDTH; ++j) {
            const Index element = start + j * WARP + lane;
            if (element < end) store_streaming(rows + element, warp[j * WARP + lane]);
        }
    }
    __syncwarp();  // a lane's later stores to its row must come after these
}

// A block's shared memory.
struct ScratchMemory {
    char* at;
    FN explicit ScratchMemory(Index) : at(reinterpret_cast<char*>(staging)) {}
};

// Zeroes `count` floats, a multiple of 4, by `ranks` threads; the address must be a multiple of 16 bytes.
FN void zero_fill(float* at, int count, int rank, int ranks) {
    for (int j = rank; 4 * j < count; j += ranks) reinterpret_cast<Wide<4>*>(at)[j] = {};
}

// Sets `count` bools to true, by `ranks` threads, 16 per store.
FN void set_true(bool* at, int count, int rank, int ranks) {
    constexpr u32 marks = 0x01010101u;
    const int     head  = minimum_of(count, int((16 - u64(at) % 16) % 16)), words = (count - head) / 16;
    auto* const   wide  = reinterpret_cast<uint4*>(at + head);
    for (int j = rank; j < words; j += ranks) wide[j] = {marks, marks, marks, marks};
    for (int j = rank; j < head; j += ranks) at[j] = true;
    for (int j = head + 16 * words + rank; j < count; j += ranks) at[j] = true;
}

// A copy out of shared memory, asynchronous from Hopper on: threads that wrote there call publish(), then a barrier;
// the `ranks` copying threads call copy_out(); every thread calls wait_for_copy_reads() before the memory is written
// again or the kernel ends, or wait_for_copies() before other copies to the same addresses.
#if __CUDA_ARCH__ >= 900
FN void publish()             { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
FN void wait_for_copy_reads() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
FN void wait_for_copies()     { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Copies `words` times 16 bytes out of shared memory: thread 0 starts the copy engine.
FN void copy_wide(float* to, const float* from, int words, int rank, int) {
    if (rank != 0 || words == 0) return;
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\tcp.async.bulk.commit_group;" ::"l"(to),
                 "r"(u32(__cvta_generic_to_shared(from))), "r"(words * 16)
                 : "memory");
}
#else
FN void publish() {}
FN void wait_for_copy_reads() {}
FN void wait_for_copies() {}
FN void copy_wide(float* to, const float* from, int words, int rank, int ranks) {
    for (int j = rank; j < words; j += ranks) reinterpret_cast<Wide<4>*>(to)[j] = reinterpret_cast<const Wide<4>*>(from)[j];
}
#endif

// Copies `count` floats by `ranks` threads, 16 bytes per store and by full sectors if both addresses are equal modulo
// 16 bytes. BY_ENGINE: the copy engine (TMA) copies, from Hopper on: fewer instructions, but slower for rows that start
// and end inside sectors.
template <bool BY_ENGINE> FN void copy_out(float* to, const float* from, int count, int rank, int ranks) {
    constexpr int sector = 32;
    if ((u64(to) ^ u64(from)) % sizeof(Wide<4>) != 0) {
        for (int j = rank; j < count; j += ranks) to[j] = from[j];
        return;
    }
    const int head = minimum_of(count, int((sector - u64(to) % sector) % sector / sizeof(float))), words = (count - head) / 4;
    if (BY_ENGINE) {
        copy_wide(to + head, from + head, words, rank, ranks);
    } else {
        const auto *source = reinterpret_cast<const Wide<4>*>(from + head);
        auto* const target = reinterpret_cast<Wide<4>*>(to + head);
        for (int j = rank; j < words; j += ranks) target[j] = source[j];
    }
    const int at = rank < head ? rank : rank + 4 * words;  // at most ten floats before and after
    if (at < count && rank < head + 3) to[at] = from[at];
}

#else

// Writes one row of WIDTH floats per replica.
template <int WIDTH, class Env>
FN void store_rows(float* rows, const float (&tile)[WIDTH][LANES], const Env& env) {
    float* start = rows + env.first * WIDTH;
    FOR_EACH_LANE(k, env) {
        for (int j = 0; j < WIDTH; ++j) start[k * WIDTH + j] = tile[j][k];
    }
}

// Memory of the calling thread, aligned to a cache line.
struct ScratchMemory {
    char* raw;
    char* at;
    explicit ScratchMemory(Index bytes)
        : raw(static_cast<char*>(__builtin_malloc(u64(bytes) + 64))), at(raw + 64 - u64(raw) % 64) {}
    ~ScratchMemory() { __builtin_free(raw); }
    ScratchMemory(const ScratchMemory&)            = delete;
    ScratchMemory& operator=(const ScratchMemory&) = delete;
};

FN void publish() {}
FN void wait_for_copy_reads() {}
FN void wait_for_copies() {}
FN void zero_fill(float* at, int count, int rank, int ranks) {
    for (int j = rank; j < count; j += ranks) at[j] = 0;
}

FN void set_true(bool* at, int count, int rank, int ranks) {
    for (int j = rank; j < count; j += ranks) at[j] = true;
}

template <bool> FN void copy_out(float* to, const float* from, int count, int rank, int ranks) {
    for (int j = rank; j < count; j += ranks) to[j] = from[j];
}

#endif
