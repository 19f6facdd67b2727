// A step of critics and one of an actor along their gradients by a batch of few rows, each in one launch. CUDA only.
//
// A cluster of blocks goes with 16 rows through layer after layer. Each of its blocks has some columns of every hidden
// layer but the first, which all work out; outputs, and derivatives by a layer's inputs, are sums over the blocks. Weights
// come from the second-level cache. What the gradients need of all rows lies in memory then, and all blocks share the
// weights' gradients by tiles. Once the gradient's norm is known, each takes a part of Adam's step, and the targets follow.
// The blocks of a launch have to be `together`. Products are in TF32; the last layers' few outputs, losses and biases in
// float32.
//
// Generated before it, beside what squashed.cuh wants: HIDDEN (layers), width_of(l) of a hidden one, where weights and
// biases begin: critic_weights(net, l), critic_biases(net, l), actor_weights(l), actor_biases(l), l up to HIDDEN;
// activation(x), and slope(y) of an activation that gave y; MOST columns of a layer, which are a row's place in memory, and
// OUTS outputs of an actor.

// --- clusters: blocks that read one another's shared memory, from Hopper on ---

constexpr int CLUSTER = 8;  // blocks: the most that every such device has

// A function that remains one: code that is run once is best short, for it has to be fetched.
#define APART static __device__ __noinline__

#define KERNEL_OF_CLUSTERS(name, Call, threads, blocks) \
    KERNEL_AS(name, Call, __cluster_dims__(CLUSTER) __launch_bounds__(threads, blocks))

FN int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
FN int  cluster_number() { return block_number() / CLUSTER; }
FN int  cluster_count()  { return block_count() / CLUSTER; }
FN void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// What another block has where this one has `own`.
FN float of_block(const float* own, int rank) {
    u32   at;
    float value;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(u32(__cvta_generic_to_shared(own))), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
    return value;
}

// The sum over all blocks, in the order of their ranks.
FN float summed_over_cluster(const float* own) {
    float of[CLUSTER], sum = 0;
    UNROLL
    for (int rank = 0; rank < CLUSTER; ++rank) of[rank] = of_block(own, rank);
    UNROLL
    for (int rank = 0; rank < CLUSTER; ++rank) sum += of[rank];
    return sum;
}

// The same of four numbers side by side.
FN Wide<4> four_over_cluster(const float* own) {
    Wide<4>   of[CLUSTER], sum = {};
    const u32 at = u32(__cvta_generic_to_shared(own));
    UNROLL
    for (int rank = 0; rank < CLUSTER; ++rank) {
        u32 there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(of[rank].value[0]), "=f"(of[rank].value[1]), "=f"(of[rank].value[2]), "=f"(of[rank].value[3])
                     : "r"(there) : "memory");
    }
    FOR_EACH_NUMBER(rank, e, CLUSTER) sum.value[e] += of[rank].value[e];
    return sum;
}

// --- shapes ---

constexpr int THREADS = 256, WARPS = THREADS / WARP, ROWS = 16;
constexpr int INPUT_STRIDE = (INPUTS + 7) / 8 * 8 + 4;        // strides are such that what a warp reads at once is in
constexpr int STRIDE = MOST + 20, OWN_STRIDE = MOST / CLUSTER + 4;  // different banks
constexpr int PARTS = WARPS * ROWS * 8, WAYS = 1 + NETS;     // as many nets go forth at once
constexpr int WHOLES_OF_NET = HIDDEN > 1 ? HIDDEN - 1 : 1;
constexpr int WHOLES = maximum(2 * NETS * WHOLES_OF_NET, (1 + NETS) * WHOLES_OF_NET + (HIDDEN > 2 ? NETS : 0));
constexpr int OWNS = 2 * NETS + 1;
constexpr int STAGED = 256, INS = 32;
static_assert(OUTPUTS <= OUTS);
static_assert(INPUTS <= MOST);

constexpr int LAYERS_AT = 2 * ROWS * INPUT_STRIDE, OWNS_AT = LAYERS_AT + WHOLES * ROWS * STRIDE;
constexpr int PARTS_AT  = OWNS_AT + OWNS * ROWS * OWN_STRIDE;
FN float* inputs_tile(int number) { return staging + number * (ROWS * INPUT_STRIDE); }
FN float* whole(int number)       { return staging + LAYERS_AT + number * (ROWS * STRIDE); }
FN float* own(int number)         { return staging + OWNS_AT + number * (ROWS * OWN_STRIDE); }
FN float* parts(int number)       { return staging + PARTS_AT + number * PARTS; }

// Parts, which other blocks read, and what they are parts of.
struct Small {
    float outputs_part[ROWS * OUTPUTS], said_part[2 * NETS][ROWS], by_actions_part[ROWS * WIDTH];
    float outputs[ROWS * OUTPUTS], said[2 * NETS][ROWS], by_actions[ROWS * WIDTH], by_said[NETS][ROWS], by[1][ROWS * OUTPUTS];
};
constexpr int SMALL_AT = PARTS_AT + WAYS * PARTS;

// Half of what a multiprocessor has leaves room for another block, so that all clusters find places, whichever processors a
// device lacks.
constexpr int SHARED_BYTES = maximum(4 * SMALL_AT + int(sizeof(Small)), 4 * STAGED * (OUTS + INS));
constexpr int BLOCKS       = SHARED_BYTES <= 113 * 1024 ? 2 : 1;

FN Small& small_ones() { return *reinterpret_cast<Small*>(staging + SMALL_AT); }

struct Net {
    const float* flat;
    int          number;  // of a critic; -1: the actor
};

FN int inputs_of(const Net& net, int l) { return l > 0 ? width_of(l - 1) : net.number < 0 ? FEATURES : INPUTS; }
FN const float* weights_of(const Net& net, int l) {
    return net.flat + (net.number < 0 ? actor_weights(l) : critic_weights(net.number, l));
}
FN const float* biases_of(const Net& net, int l) {
    return net.flat + (net.number < 0 ? actor_biases(l) : critic_biases(net.number, l));
}
FN constexpr int own_width(int l) { return width_of(l) / CLUSTER; }
FN int           own_begin(int l) { return cluster_rank() * own_width(l); }

FN Wide<4> four(const float* at) { return *reinterpret_cast<const Wide<4>*>(at); }
FN u32     rounded(float x)      { return Tf32::rounded(x); }

// --- forth ---

// A net on its way: its inputs, where its tiles are, from `first` on, own columns of its last hidden layer, and own
// columns' part of its outputs, [16, outs].
struct Way {
    Net          net;
    int          first, outs;
    const float* inputs;
    float*       last;
    float*       outputs;
};

// What is loaded for all nets before anything is stored is waited for once.

// Rows times the first layers' weights [OUT, in], with biases, through the activation.
template <int COUNT> FN void forth_through_first(const Way (&ways)[COUNT]) {
    constexpr int TILES = width_of(0) / 64;
    const int     lane = thread_rank() % WARP, g = lane / 4, q = lane % 4, first = thread_rank() / WARP * TILES * 8;
    float         c[COUNT][TILES][4];
    UNROLL
    for (int n = 0; n < COUNT; ++n) {
        const float* const biases = biases_of(ways[n].net, 0) + first + 2 * q;
        FOR_EACH_NUMBER(j, x, TILES) c[n][j][x] = biases[8 * j + x % 2];
    }
    UNROLL
    for (int n = 0; n < COUNT; ++n) {
        const int          in      = inputs_of(ways[n].net, 0);
        const float* const weights = weights_of(ways[n].net, 0) + (first + g) * in;
        const float* const low     = ways[n].inputs + g * INPUT_STRIDE, * const high = low + 8 * INPUT_STRIDE;
        _Pragma("unroll 4")
        for (int begin = 0; begin < in; begin += 8) {
            const int k       = begin + q;
            const u32 left[4] = {rounded(low[k]), rounded(high[k]), rounded(low[k + 4]), rounded(high[k + 4])};
            UNROLL
            for (int j = 0; j < TILES; ++j) {
                const float* const row      = weights + 8 * j * in;
                const u32          right[2] = {k < in ? rounded(row[k]) : 0, k + 4 < in ? rounded(row[k + 4]) : 0};
                product_tf32(c[n][j], left, right);
            }
        }
    }
    UNROLL
    for (int n = 0; n < COUNT; ++n) {
        float* const to = whole(ways[n].first) + first + 2 * q;
        FOR_EACH_NUMBER(j, x, TILES) to[(g + x / 2 * 8) * STRIDE + 8 * j + x % 2] = activation(c[n][j][x]);
    }
}

// Own columns of layers, without biases. Warps share them by eights, and the depth, which is taken in an order in which a
// thread's factors lie side by side: each warp's part of the sums.
template <int L, int COUNT> FN void find_parts(const Way (&ways)[COUNT]) {
    constexpr int  IN = width_of(L - 1), TILES = own_width(L) / 8, SHARES = WARPS / TILES;
    constexpr int  TURNS = (IN / 16 + SHARES - 1) / SHARES;
    constexpr bool EVEN = IN / 16 % SHARES == 0;  // otherwise what is beyond the depth is multiplied by zero
    const int      warp = thread_rank() / WARP, lane = thread_rank() % WARP, g = lane / 4, q = lane % 4;
    const auto     depth_of = [&](int turn) { return (turn * SHARES + warp / TILES) * 16 + 4 * q; };
    float          c[COUNT][4] = {};
    if (warp >= SHARES * TILES) return;
    UNROLL
    for (int n = 0; n < COUNT; ++n) {
        const float* const from    = whole(ways[n].first + L - 1) + g * STRIDE;
        const float* const weights = weights_of(ways[n].net, L) + (own_begin(L) + warp % TILES * 8 + g) * IN;
        Wide<4>            weight[TURNS] = {};
        UNROLL
        for (int turn = 0; turn < TURNS; ++turn) {
            if (EVEN || depth_of(turn) < IN) weight[turn] = four(weights + depth_of(turn));
        }
        UNROLL
        for (int turn = 0; turn < TURNS; ++turn) {
            const int     k = EVEN ? depth_of(turn) : minimum(depth_of(turn), IN - 4);
            const Wide<4> low = four(from + k), high = four(from + 8 * STRIDE + k);
            UNROLL
            for (int half = 0; half < 4; half += 2) {
                const u32 left[4]  = {rounded(low.value[half]), rounded(high.value[half]),
                                      rounded(low.value[half + 1]), rounded(high.value[half + 1])};
                const u32 right[2] = {rounded(weight[turn].value[half]), rounded(weight[turn].value[half + 1])};
                product_tf32(c[n], left, right);
            }
        }
    }
    FOR_EACH_NUMBER(n, x, COUNT) parts(n)[warp * (ROWS * 8) + (g + x / 2 * 8) * 8 + 2 * q + x % 2] = c[n][x];
}

// Numbers that a thread has of own columns.
FN constexpr int turns_of(int columns) { return (ROWS * columns + THREADS - 1) / THREADS; }

// Own columns of a layer, from their parts.
template <int L, int COUNT>
FN void add_parts(const Way (&ways)[COUNT], const float (&biases)[COUNT][turns_of(own_width(L))]) {
    constexpr int  OWN = own_width(L), TILES = OWN / 8, SHARES = WARPS / TILES;
    constexpr bool LAST = L == HIDDEN - 1;
    UNROLL
    for (int n = 0; n < COUNT; ++n) {
        float* const to = LAST ? ways[n].last : whole(ways[n].first + L) + own_begin(L);
        UNROLL
        for (int turn = 0; turn < turns_of(OWN); ++turn) {
            const int i = turn * THREADS + thread_rank(), row = i / OWN, k = i % OWN;
            if (i >= ROWS * OWN) break;
            float sum = biases[n][turn];
            UNROLL
            for (int share = 0; share < SHARES; ++share) {
                sum += parts(n)[(share * TILES + k / 8) * (ROWS * 8) + row * 8 + k % 8];
            }
            to[row * (LAST ? OWN_STRIDE : STRIDE) + k] = activation(sum);
        }
    }
}

constexpr int OUTPUT_SHARES = 8;  // threads of a sum

// The outputs' weights that a thread needs first, of all that are of own columns of the last hidden layers.
template <int COUNT> struct OutputWeights {
    static constexpr int EACH = own_width(HIDDEN - 1) / OUTPUT_SHARES;
    float                of[COUNT][EACH];
    FN OutputWeights(const Way (&ways)[COUNT]) {
        UNROLL
        for (int n = 0; n < COUNT; ++n) load(of[n], ways[n], thread_rank() / OUTPUT_SHARES);
    }
    static FN void load(float (&own)[EACH], const Way& way, int i) {
        const float* const weights = weights_of(way.net, HIDDEN) + own_begin(HIDDEN - 1) + thread_rank() % OUTPUT_SHARES;
        UNROLL
        for (int e = 0; e < EACH; ++e) own[e] = weights[i % way.outs * width_of(HIDDEN - 1) + e * OUTPUT_SHARES];
    }
};

// The part of the outputs that own columns of the last hidden layers are in.
template <int COUNT> FN void find_outputs_parts(const Way (&ways)[COUNT], OutputWeights<COUNT>& weights) {
    constexpr int EACH = OutputWeights<COUNT>::EACH;
    const int     lane = thread_rank() % OUTPUT_SHARES, begin = thread_rank() / OUTPUT_SHARES;
    UNROLL
    for (int n = 0; n < COUNT; ++n) {
        ROLLED
        for (int i = begin; i < ROWS * ways[n].outs; i += THREADS / OUTPUT_SHARES) {
            float sum = 0;
            if (i != begin) OutputWeights<COUNT>::load(weights.of[n], ways[n], i);
            UNROLL
            for (int e = 0; e < EACH; ++e) {
                sum += ways[n].last[i / ways[n].outs * OWN_STRIDE + lane + e * OUTPUT_SHARES] * weights.of[n][e];
            }
            UNROLL
            for (int distance = OUTPUT_SHARES / 2; distance > 0; distance /= 2) sum += from_lane_across(sum, distance);
            if (lane == 0) ways[n].outputs[i] = sum;
        }
    }
}

// Through all layers: of the last hidden one own columns are kept, of the others all.
template <int L = 0, int COUNT> FN void forth(const Way (&ways)[COUNT]) {
    if constexpr (L == 0) {
        forth_through_first(ways);
        block_barrier();
        if constexpr (HIDDEN == 1) {
            OutputWeights<COUNT> weights(ways);
            UNROLL
            for (int n = 0; n < COUNT; ++n) {
                ROLLED
                for (int i = thread_rank(); i < ROWS * own_width(0); i += THREADS) {
                    const int row = i / own_width(0), k = i % own_width(0);
                    ways[n].last[row * OWN_STRIDE + k] = whole(ways[n].first)[row * STRIDE + own_begin(0) + k];
                }
            }
            block_barrier();
            find_outputs_parts(ways, weights);
        }
    } else {
        constexpr int TURNS = turns_of(own_width(L));
        float         biases[COUNT][TURNS];
        UNROLL
        for (int n = 0; n < COUNT; ++n) {
            UNROLL
            for (int turn = 0; turn < TURNS; ++turn) {
                biases[n][turn] = biases_of(ways[n].net, L)[own_begin(L) + (turn * THREADS + thread_rank()) % own_width(L)];
            }
        }
        find_parts<L>(ways);
        block_barrier();
        if constexpr (L == HIDDEN - 1) {
            OutputWeights<COUNT> weights(ways);
            add_parts<L>(ways, biases);
            block_barrier();
            find_outputs_parts(ways, weights);
        } else {
            add_parts<L>(ways, biases);
            cluster_barrier();
            UNROLL
            for (int n = 0; n < COUNT; ++n) {
                ROLLED
                for (int i = thread_rank(); i < ROWS * width_of(L); i += THREADS) {
                    float* const at    = whole(ways[n].first + L) + i / width_of(L) * STRIDE + i % width_of(L);
                    const int    owner = i % width_of(L) / own_width(L);
                    if (owner != cluster_rank()) *at = of_block(at, owner);
                }
            }
            cluster_barrier();  // all have read: it may be written again
        }
    }
    if constexpr (L < HIDDEN - 1) forth<L + 1>(ways);
}

// --- back ---

// Some nets side by side: where the tiles of one are, from `first` on, its derivatives `by` own sums, the number of a tile
// that is written over, and own columns of what its last hidden layer gave.
struct Side {
    Net    net;
    int    first, spare;
    float* by, * last;
};

// Derivatives by own sums of the last hidden layers, from those by the outputs, [16, SAID] of each.
template <int SAID, int COUNT> FN void back_from_outputs(const Side (&sides)[COUNT], const float (&by)[COUNT][ROWS * SAID]) {
    constexpr int IN = width_of(HIDDEN - 1), OWN = own_width(HIDDEN - 1), TURNS = turns_of(OWN);
    float         sums[COUNT][TURNS] = {};
    UNROLL
    for (int n = 0; n < COUNT; ++n) {
        const float* const weights = weights_of(sides[n].net, HIDDEN) + own_begin(HIDDEN - 1);
        UNROLL
        for (int turn = 0; turn < TURNS; ++turn) {
            const int i = turn * THREADS + thread_rank(), row = minimum(i / OWN, ROWS - 1), k = i % OWN;
            _Pragma("unroll 4")
            for (int o = 0; o < SAID; ++o) sums[n][turn] += by[n][row * SAID + o] * weights[o * IN + k];
        }
    }
    UNROLL
    for (int n = 0; n < COUNT; ++n) {
        UNROLL
        for (int turn = 0; turn < TURNS; ++turn) {
            const int i = turn * THREADS + thread_rank(), at = i / OWN * OWN_STRIDE + i % OWN;
            if (i < ROWS * OWN) sides[n].by[at] = sums[n][turn] * slope(sides[n].last[at]);
        }
    }
}

// From derivatives by own sums of a layer to own columns' part of those by its inputs: calls each(row, column, value).
template <int L, class Each> FN void back_through(const float* by, const Net& net, const Each& each) {
    constexpr int      IN = width_of(L - 1), OWN = own_width(L);
    const int          warp = thread_rank() / WARP, lane = thread_rank() % WARP, g = lane / 4, q = lane % 4;
    const float* const weights = weights_of(net, L) + own_begin(L) * IN;
    ROLLED
    for (int first = 32 * warp; first < IN; first += 32 * WARPS) {
        float c[4][4] = {};
        UNROLL
        for (int from = 0; from < OWN; from += 8) {
            const int     k = from + q;
            const u32     left[4] = {rounded(by[g * OWN_STRIDE + k]), rounded(by[(g + 8) * OWN_STRIDE + k]),
                                     rounded(by[g * OWN_STRIDE + k + 4]), rounded(by[(g + 8) * OWN_STRIDE + k + 4])};
            const Wide<4> low = four(weights + k * IN + first + 4 * g), high = four(weights + (k + 4) * IN + first + 4 * g);
            UNROLL
            for (int t = 0; t < 4; ++t) {
                const u32 right[2] = {rounded(low.value[t]), rounded(high.value[t])};
                product_tf32(c[t], left, right);
            }
        }
        FOR_EACH_NUMBER(t, x, 4) each(g + x / 2 * 8, first + 8 * q + x % 2 * 4 + t, c[t][x]);
    }
}

// Back through hidden layers down to one, from the derivatives by own sums of layer L; calls use(l, net, derivatives).
template <int L, int UNTIL, int COUNT, class Use> FN void back(const Side (&sides)[COUNT], const Use& use) {
    UNROLL
    for (int n = 0; n < COUNT; ++n) use(L, n, sides[n].by);
    if constexpr (L > UNTIL) {
        UNROLL
        for (int n = 0; n < COUNT; ++n) {
            float* const to = whole(sides[n].spare);
            back_through<L>(sides[n].by, sides[n].net, [&](int row, int column, float x) { to[row * STRIDE + column] = x; });
        }
        cluster_barrier();
        constexpr int FOURS = own_width(L - 1) / 4;
        ROLLED
        for (int i = thread_rank(); i < COUNT * ROWS * FOURS; i += THREADS) {
            const int     n = i / (ROWS * FOURS), row = i / FOURS % ROWS, k = i % FOURS * 4;
            const int     at = row * STRIDE + own_begin(L - 1) + k;
            int           spare = sides[0].spare, first = sides[0].first;
            float*        to = sides[0].by;
            UNROLL
            for (int other = 1; other < COUNT; ++other) {
                if (n == other) spare = sides[other].spare, first = sides[other].first, to = sides[other].by;
            }
            Wide<4>       by   = four_over_cluster(whole(spare) + at);
            const Wide<4> gave = four(whole(first + L - 1) + at);
            UNROLL
            for (int e = 0; e < 4; ++e) by.value[e] *= slope(gave.value[e]);
            *reinterpret_cast<Wide<4>*>(to + row * OWN_STRIDE + k) = by;
        }
        if constexpr (L > UNTIL + 1) cluster_barrier();  // all have read: it may be written again
        else block_barrier();
        back<L - 1, UNTIL>(sides, use);
    }
}

// --- tiles and memory ---

// Rows [rows, columns], and others beside them, into a tile; all else of it is zero.
FN void fetch(float* to, const float* rows, int columns, const float* more, int more_columns, int first_row, int count) {
    _Pragma("unroll 2")
    for (int i = thread_rank(); i < ROWS * INPUT_STRIDE; i += THREADS) {
        const int   row = i / INPUT_STRIDE, k = i % INPUT_STRIDE;
        const Index of = first_row + row;
        float       x  = 0;
        if (of < count && k < columns + more_columns) {
            x = k < columns ? rows[of * columns + k] : more[of * more_columns + k - columns];
        }
        to[i] = x;
    }
}

FN void keep(float* rows, const float* from, int stride, int l, int first_row, int count) {
    const int fours = own_width(l) / 4;
    ROLLED
    for (int i = thread_rank(); i < ROWS * fours; i += THREADS) {
        const int row = i / fours, k = i % fours * 4;
        if (first_row + row < count) {
            float* const to = rows + Index(first_row + row) * MOST + own_begin(l) + k;
            *reinterpret_cast<Wide<4>*>(to) = four(from + row * stride + k);
        }
    }
}

// What the hidden layers gave, at [hidden, rows, MOST].
FN void keep_all(float* kept, int first, const float* last, int first_row, int count) {
    ROLLED
    for (int l = 0; l < HIDDEN - 1; ++l) {
        keep(kept + Index(l) * count * MOST, whole(first + l) + own_begin(l), STRIDE, l, first_row, count);
    }
    keep(kept + Index(HIDDEN - 1) * count * MOST, last, OWN_STRIDE, HIDDEN - 1, first_row, count);
}

// --- the gradient of weights ---

// Columns of eight are exchanged such that four rows' are in different banks.
template <int COLUMNS> FN int staged_place(int row, int column) { return row * COLUMNS + (column ^ row % 4 * 8); }

// Four numbers, or zeros, on their way to shared memory.
FN void send_four(float* to, const float* from, bool real) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(u32(__cvta_generic_to_shared(to))), "l"(from),
                 "r"(real ? 16 : 0) : "memory");
}
FN void await_fours() { asm volatile("cp.async.wait_all;" ::: "memory"); }

template <int COLUMNS> FN void stage(float* to, const float* from, int first_column, int first_row, int rows) {
    constexpr int FOURS = COLUMNS / 4, AT_ONCE = THREADS / FOURS;
    const int     column = thread_rank() % FOURS * 4, first = thread_rank() / FOURS;
    const float*  at = from + Index(first_row) * MOST + first_column + column;
    _Pragma("unroll 4")
    for (int row = first; row < STAGED; row += AT_ONCE) {
        const bool real = first_row + row < rows;
        send_four(to + staged_place<COLUMNS>(row, column), real ? at + row * MOST : from, real);
    }
}

// Few columns, a row a thread. What is worked out from those beyond them is nothing that is wanted.
template <int COLUMNS>
FN void stage_few(float* to, const float* from, int columns, int first_column, int first_row, int rows) {
    static_assert(STAGED == THREADS);
    const int          row = thread_rank(), end = minimum(COLUMNS, columns - first_column);
    const float* const at  = from + Index(first_row + row) * columns + first_column;
    _Pragma("unroll 4")
    for (int k = 0; k < end; ++k) to[staged_place<COLUMNS>(row, k)] = first_row + row < rows ? at[k] : 0.0f;
}

// Some columns of many rows.
struct Factor {
    const float* rows;
    int          stride, columns;

    template <int COLUMNS> FN void to(float* staged, int first_column, int first_row, int count) const {
        if (stride == MOST) stage<COLUMNS>(staged, rows, first_column, first_row, count);
        else stage_few<COLUMNS>(staged, rows, columns, first_column, first_row, count);
    }
};

// A tile of 64 outputs and 32 inputs: derivatives times inputs, summed over rows.
// Returns the squares that a thread has of it.
FN float gradient_tile(float* gradient, float* of_biases, const Factor& by, const Factor& inputs, int tile, int rows) {
    float* const staged_by = staging;
    float* const staged_in = staging + STAGED * OUTS;
    const int    outs = by.columns, ins = inputs.columns, across = (ins + INS - 1) / INS;
    const int    first_out = tile / across * OUTS, first_in = tile % across * INS;
    const int    r = thread_rank(), warp = r / WARP, lane = r % WARP, g = lane / 4, q = lane % 4;
    const int    m = warp / 2 * 16, n = warp % 2 * 16;
    float        c[2][4] = {}, of_bias = 0, squares = 0;
    ROLLED
    for (int first = 0; first < rows; first += STAGED) {
        block_barrier();
        by.template to<OUTS>(staged_by, first_out, first, rows);
        inputs.template to<INS>(staged_in, first_in, first, rows);
        await_fours();
        block_barrier();
        _Pragma("unroll 4")
        for (int row = q; row < STAGED; row += 8) {
            const float* const low = staged_by + staged_place<OUTS>(row, m + g), * const high = staged_by + staged_place<OUTS>(row, m + g + 8);
            const u32          left[4] = {rounded(low[0]), rounded(high[0]), rounded(low[4 * OUTS]), rounded(high[4 * OUTS])};
            UNROLL
            for (int j = 0; j < 2; ++j) {
                const float* const at       = staged_in + staged_place<INS>(row, n + 8 * j + g);
                const u32          right[2] = {rounded(at[0]), rounded(at[4 * INS])};
                product_tf32(c[j], left, right);
            }
        }
        if (first_in == 0) {
            constexpr int SHARE = STAGED * OUTS / THREADS;
            _Pragma("unroll 8")
            for (int row = r / OUTS * SHARE; row < (r / OUTS + 1) * SHARE; ++row) {
                of_bias += staged_by[staged_place<OUTS>(row, r % OUTS)];
            }
        }
    }
    FOR_EACH_NUMBER(j, x, 2) {
        const int o = first_out + m + g + x / 2 * 8, i = first_in + n + 8 * j + 2 * q + x % 2;
        if (o < outs && i < ins) {
            gradient[o * ins + i] = c[j][x];
            squares += c[j][x] * c[j][x];
        }
    }
    if (first_in != 0) return squares;
    block_barrier();
    staging[r] = of_bias;
    block_barrier();
    if (r < OUTS && first_out + r < outs) {
        float sum = 0;
        ROLLED
        for (int share = 0; share < THREADS / OUTS; ++share) sum += staging[share * OUTS + r];
        of_biases[first_out + r] = sum;
        squares += sum * sum;
    }
    return squares;
}

// All tiles of a net by turns over the blocks, from the block `turn` on, which becomes the next one's. What hidden layers
// gave and the derivatives by their sums lie at [hidden, rows, MOST]. Returns the squares that a thread has of it.
FN float gradient_of(const Net& net, float* gradient, const Factor& inputs, const float* kept, const float* slopes,
                     const Factor& by_outputs, int rows, int& turn) {
    float squares = 0;
    ROLLED
    for (int l = 0; l <= HIDDEN; ++l) {
        const Index  layer = Index(rows) * MOST;
        const Factor by    = l < HIDDEN ? Factor{slopes + l * layer, MOST, width_of(l)} : by_outputs;
        const Factor from  = l > 0 ? Factor{kept + (l - 1) * layer, MOST, width_of(l - 1)} : inputs;
        const int    tiles = (by.columns + OUTS - 1) / OUTS * ((from.columns + INS - 1) / INS), blocks = block_count();
        ROLLED
        for (int tile = (block_number() + blocks - turn) % blocks; tile < tiles; tile += blocks) {
            squares += gradient_tile(gradient + (weights_of(net, l) - net.flat), gradient + (biases_of(net, l) - net.flat),
                                     by, from, tile, rows);
        }
        turn = (turn + tiles) % blocks;
    }
    return squares;
}

// Sums [count, rows] over rows, by one block.
APART void add_up(float* totals, const float* sums, int count, int rows) {
    const int warp = thread_rank() / WARP, lane = thread_rank() % WARP;
    ROLLED
    for (int s = warp; s < count; s += WARPS) {
        float sum = 0;
        _Pragma("unroll 8")
        for (int row = lane; row < rows; row += WARP) sum += sums[s * rows + row];
        sum = summed_over_warp(sum);
        if (lane == 0) totals[s] = sum;
    }
}

// --- the step ---

// A step along the gradient, once all blocks have told of the squares of what they found; until then calls meanwhile().
template <class Call, class Meanwhile>
FN void step(const Call& call, float* target, float squares, u32* arrived, const Meanwhile& meanwhile) {
    constexpr int AT_ONCE = 5;
    const int     count = int(call.count), all = block_count() * THREADS, own = block_number() * THREADS + thread_rank();
    const i64     steps = *call.steps + 1;  // what the first block writes is read before it may
    Moments       moments[AT_ONCE];
    float         followers[AT_ONCE];
    const auto    fetch = [&](int first) {
        UNROLL
        for (int k = 0; k < AT_ONCE; ++k) {
            const int i = first + k * all;
            if (i >= count) break;
            moments[k]   = {0.0f, call.means[i], call.squares[i], call.weights[i]};
            followers[k] = call.tau > 0 ? target[i] : 0.0f;
        }
    };
    squares = block_sum<THREADS>(squares);
    if (thread_rank() == 0) call.squares_of_blocks[block_number()] = squares;
    const u32 before = arrive_at_grid(arrived);
    fetch(own);
    const Rates rates = rates_of(call, steps);
    meanwhile();
    wait_for_grid(arrived, before);
    const float   sum     = block_sum<THREADS>(thread_rank() < block_count() ? call.squares_of_blocks[thread_rank()] : 0.0f);
    const Outcome outcome = outcome_of(call, false, square_root(sum));
    ROLLED
    for (int first = own; first < count; first += AT_ONCE * all) {
        if (first != own) fetch(first);
        UNROLL
        for (int k = 0; k < AT_ONCE; ++k) {
            if (first + k * all < count) moments[k].gradient = call.message[first + k * all];
        }
        UNROLL
        for (int k = 0; k < AT_ONCE; ++k) {
            const int i = first + k * all;
            if (i >= count) break;
            const float weight =
                outcome.active ? take_step(call, i, moments[k], outcome.gradient_factor, rates) : moments[k].weight;
            if (call.tau > 0) target[i] = followers[k] + call.tau * (weight - followers[k]);
        }
    }
    if (own == 0) write_outcome(call, outcome, steps);
}

// The temperature's own, of one block, that has added up what it goes by.
struct Temperature {
    const float* learning_rate;
    double       log_beta1, log_beta2;
    i64*         steps;
    int*         stop;
    float        max_norm, most_kl;
    Index        count;
    float        rate1, rate2, beta2, epsilon;
    float *      message, *weights, *means, *squares, *figures, *norm;
};

template <class Call> FN void step_of_temperature(const Call& call) {
    block_barrier();
    if (thread_rank() != 0) return;
    const Temperature own = {
        call.learning_rate, call.log_beta1, call.log_beta2, call.temperature_steps, nullptr, 0.0f, 0.0f, 1, call.rate1,
        call.rate2, call.beta2, call.epsilon, call.temperature_message, call.log_temperature, call.temperature_means,
        call.temperature_squares, nullptr, call.temperature_norm,
    };
    const i64     steps   = *own.steps + 1;
    const Moments moments = moments_of(own, 0);
    const Outcome outcome = outcome_of(own, false, elementary::abs(moments.gradient));
    if (outcome.active) take_step(own, 0, moments, outcome.gradient_factor, rates_of(own, steps));
    write_outcome(own, outcome, steps);
}

// --- actions ---

// The action of a row by the actor's outputs, into the critics' inputs; returns the logarithm of its probability.
FN float choose(float* inputs, const float* outputs, const float* normal, bool smoothed, float noise, float most) {
    float log_prob = 0;
    ROLLED
    for (int d = 0; d < WIDTH; ++d) {
        const float before = unsquashed(outputs, normal, 0, d);
        float       action = elementary::tanh(before);
        if constexpr (STOCHASTIC) {
            log_prob += log_probability(outputs, normal, 0, d, before);
        } else if (smoothed) {
            action = clip(action + clip(noise * normal[d], -most, most), -1.0f, 1.0f);
        }
        inputs[FEATURES + d] = action;
    }
    return log_prob;
}

FN void find_outputs(Small& small, const Net& actor) {
    cluster_barrier();
    ROLLED
    for (int i = thread_rank(); i < ROWS * OUTPUTS; i += THREADS) {
        const float bias = biases_of(actor, HIDDEN)[i % OUTPUTS];
        small.outputs[i] = bias + summed_over_cluster(small.outputs_part + i);
    }
    block_barrier();
}

// What critics say; the second half of them are the targets.
FN void find_said(Small& small, int count, const float* critics, const float* targets) {
    cluster_barrier();
    ROLLED
    for (int i = thread_rank(); i < ROWS * count; i += THREADS) {
        const int number = i / ROWS;
        const Net net    = {number < NETS ? critics : targets, number % NETS};
        const float bias = *biases_of(net, HIDDEN);
        small.said[number][i % ROWS] = bias + summed_over_cluster(&small.said_part[number][i % ROWS]);
    }
    block_barrier();
}

// --- the kernels ---

template <class Call> FN void critics(const Call& call) {
    Small&      small = small_ones();
    const int   rows = int(call.rows), tiles = (rows + ROWS - 1) / ROWS, r = thread_rank();
    const bool  tells  = cluster_rank() == 0;
    const float log_temperature = *call.log_temperature;
    u32* const  arrived = reinterpret_cast<u32*>(call.arrivals);
    float* const now = inputs_tile(0), * const then = inputs_tile(1);
    const Way   actor = {{call.next_actor, -1}, NETS * WHOLES_OF_NET, OUTPUTS, then, own(NETS), small.outputs_part};
    Way         critics[NETS], targets[NETS], first_ways[1 + NETS] = {actor};  // whose tiles are those of a target, later
    UNROLL
    for (int net = 0; net < NETS; ++net) {
        critics[net] = {{call.critics, net}, net * WHOLES_OF_NET, 1, now, own(net), small.said_part[net]};
        targets[net] = {{call.targets, net}, (NETS + net) * WHOLES_OF_NET, 1, then, own(NETS + net), small.said_part[NETS + net]};
        first_ways[1 + net] = critics[net];
    }
    ROLLED
    for (int tile = cluster_number(); tile < tiles; tile += cluster_count()) {
        const int first = tile * ROWS, row = first + r;
        float     log_prob = 0;
        if (tile >= cluster_count()) cluster_barrier();  // what was a part of the last tile's has been read
        fetch(then, call.next_observations, FEATURES, nullptr, 0, first, rows);
        fetch(now, call.observations, FEATURES, call.actions, WIDTH, first, rows);
        const bool  real     = r < ROWS && row < rows, found = real && call.found[row] != 0;
        const float returned = real ? call.returns[row] : 0.0f, discount = real ? call.discounts[row] : 0.0f;
        block_barrier();
        forth(first_ways);
        find_outputs(small, actor.net);
        if (r < ROWS) {
            log_prob = choose(then + r * INPUT_STRIDE, small.outputs + r * OUTPUTS, call.normal + Index(row < rows ? row : 0) * WIDTH,
                              call.noise > 0.0f, call.noise, call.most);
        }
        block_barrier();
        forth(targets);
        find_said(small, 2 * NETS, call.critics, call.targets);
        if (r < ROWS) {
            float aim = 0, loss = 0;
            if (found) {
                float least = small.said[NETS][r];
                ROLLED
                for (int net = 1; net < NETS; ++net) least = minimum(least, small.said[NETS + net][r]);
                if (STOCHASTIC) least -= exp(log_temperature) * log_prob;
                aim = returned + discount * least;
            }
            UNROLL
            for (int net = 0; net < NETS; ++net) {
                const float off = found ? small.said[net][r] - aim : 0.0f;
                loss += 0.5f * off * off;
                small.by_said[net][r] = off;
                if (tells && row < rows) call.by_said[Index(net) * rows + row] = off;
            }
            if (tells && row < rows) {
                call.sums[Index(VALUE_LOSS) * rows + row] = loss;
                call.sums[Index(ALIVE) * rows + row]      = found ? 1.0f : 0.0f;
            }
        }
        if (tells) {
            ROLLED
            for (int i = r; i < ROWS * INPUTS; i += THREADS) {
                const int at = i / INPUTS;
                if (first + at < rows) call.inputs[Index(first + at) * INPUTS + i % INPUTS] = now[at * INPUT_STRIDE + i % INPUTS];
            }
        }
        block_barrier();
        Side sides[NETS];
        UNROLL
        for (int net = 0; net < NETS; ++net) {
            sides[net] = {critics[net].net, critics[net].first, targets[net].first, targets[net].last, own(net)};
            keep_all(call.kept + Index(net * HIDDEN) * rows * MOST, sides[net].first, own(net), first, rows);
        }
        back_from_outputs<1>(sides, small.by_said);
        block_barrier();
        back<HIDDEN - 1, 0>(sides, [&](int l, int net, const float* by) {
            keep(call.slopes + Index(net * HIDDEN + l) * rows * MOST, by, OWN_STRIDE, l, first, rows);
        });
    }
    cluster_barrier();  // what others read of this block has been read
    wait_for_grid(arrived, arrive_at_grid(arrived));
    int   turn    = 0;
    float squares = 0;
    ROLLED
    for (int net = 0; net < NETS; ++net) {
        squares += gradient_of({call.critics, net}, call.message, {call.inputs, INPUTS, INPUTS},
                               call.kept + Index(net * HIDDEN) * rows * MOST, call.slopes + Index(net * HIDDEN) * rows * MOST,
                               {call.by_said + Index(net) * rows, 1, 1}, rows, turn);
    }
    if (block_number() == turn) add_up(call.message + call.count, call.sums, SUMS, rows);
    if (call.alone) step(call, call.targets, squares, arrived, [] {});
}

template <class Call> FN void actor(const Call& call) {
    Small&      small = small_ones();
    const int   rows = int(call.rows), tiles = (rows + ROWS - 1) / ROWS, r = thread_rank(), warp = r / WARP;
    const bool  tells  = cluster_rank() == 0;
    const float log_temperature = *call.log_temperature;
    u32* const  arrived = reinterpret_cast<u32*>(call.arrivals);
    float* const inputs = inputs_tile(0);
    const Way    own_way[1] = {{{call.actor, -1}, 0, OUTPUTS, inputs, own(0), small.outputs_part}};
    const Net&   actor      = own_way[0].net;
    Way          critics[NETS];
    UNROLL
    for (int net = 0; net < NETS; ++net) {
        critics[net] = {{call.critics, net}, (1 + net) * WHOLES_OF_NET, 1, inputs, own(1 + net), small.said_part[net]};
    }
    ROLLED
    for (int tile = cluster_number(); tile < tiles; tile += cluster_count()) {
        const int          first = tile * ROWS, row = first + r;
        const float* const normal = call.normal + Index(row < rows ? row : 0) * WIDTH;
        float              log_prob = 0;
        if (tile >= cluster_count()) cluster_barrier();  // what was a part of the last tile's has been read
        fetch(inputs, call.observations, FEATURES, nullptr, 0, first, rows);
        const bool found = r < ROWS && row < rows && call.found[row] != 0;
        block_barrier();
        forth(own_way);
        find_outputs(small, actor);
        if (r < ROWS) log_prob = choose(inputs + r * INPUT_STRIDE, small.outputs + r * OUTPUTS, normal, false, 0.0f, 0.0f);
        block_barrier();
        forth(critics);
        find_said(small, NETS, call.critics, call.critics);
        if (r < ROWS) {
            int which = 0;
            ROLLED
            for (int net = 1; net < NETS && STOCHASTIC; ++net) which = small.said[net][r] < small.said[which][r] ? net : which;
            UNROLL
            for (int net = 0; net < NETS; ++net) small.by_said[net][r] = found && which == net ? -1.0f : 0.0f;
            if (tells && row < rows) {
                const float loss = (STOCHASTIC ? exp(log_temperature) * log_prob : 0.0f) - small.said[which][r];
                call.sums[Index(POLICY_LOSS) * rows + row] = found ? loss : 0.0f;
                call.sums[Index(ENTROPY) * rows + row]     = found && STOCHASTIC ? -log_prob : 0.0f;
                call.sums[Index(ALIVE) * rows + row]       = found ? 1.0f : 0.0f;
                call.by_temperature[row] = found ? -(log_prob + call.target_entropy) : 0.0f;
            }
        }
        ROLLED
        for (int i = r; i < ROWS * WIDTH; i += THREADS) small.by_actions_part[i] = 0;
        block_barrier();
        Side sides[NETS];
        UNROLL
        for (int net = 0; net < NETS; ++net) {
            sides[net] = {
                critics[net].net, critics[net].first, (1 + NETS) * WHOLES_OF_NET + net, own(1 + NETS + net), own(1 + net)};
        }
        back_from_outputs<1>(sides, small.by_said);
        block_barrier();
        if constexpr (HIDDEN > 1) back<HIDDEN - 1, 1>(sides, [](int, int, const float*) {});
        UNROLL
        for (int net = 0; net < NETS; ++net) {
            const float* by     = sides[net].by;
            int          stride = OWN_STRIDE, begin = own_begin(0), columns = own_width(0);
            if constexpr (HIDDEN > 1) {
                float* const gave = whole(sides[net].first);  // and what it becomes
                back_through<1>(by, sides[net].net, [&](int at, int column, float x) {
                    gave[at * STRIDE + column] = x * slope(gave[at * STRIDE + column]);
                });
                by = gave, stride = STRIDE, begin = 0, columns = width_of(0);
                block_barrier();
            }
            constexpr int      EACH = ((HIDDEN > 1 ? width_of(0) : own_width(0)) + WARP - 1) / WARP;
            const float* const weights = weights_of(sides[net].net, 0) + begin * INPUTS + FEATURES;
            ROLLED
            for (int d = 0; d < WIDTH; ++d) {
                float own[EACH];
                UNROLL
                for (int e = 0; e < EACH; ++e) {
                    const int o = r % WARP + e * WARP;
                    own[e]      = o < columns ? weights[o * INPUTS + d] : 0.0f;
                }
                ROLLED
                for (int at = warp; at < ROWS; at += WARPS) {
                    float sum = 0;
                    UNROLL
                    for (int e = 0; e < EACH; ++e) {
                        const int o = r % WARP + e * WARP;
                        if (o < columns) sum += by[at * stride + o] * own[e];
                    }
                    sum = summed_over_warp(sum);
                    if (r % WARP == 0) small.by_actions_part[at * WIDTH + d] += sum;
                }
            }
        }
        cluster_barrier();
        ROLLED
        for (int i = r; i < ROWS * WIDTH; i += THREADS) small.by_actions[i] = summed_over_cluster(small.by_actions_part + i);
        block_barrier();
        if (r < ROWS) {
            ROLLED
            for (int d = 0; d < WIDTH; ++d) {
                steer(small.by[0] + r * OUTPUTS, small.outputs + r * OUTPUTS, normal, inputs[r * INPUT_STRIDE + FEATURES + d],
                      small.by_actions[r * WIDTH + d], STOCHASTIC ? exp(log_temperature) : 0.0f, 0, d);
            }
            ROLLED
            for (int o = 0; o < OUTPUTS; ++o) {
                if (!found) small.by[0][r * OUTPUTS + o] = 0;
                if (tells && row < rows) call.by_outputs[Index(row) * OUTPUTS + o] = small.by[0][r * OUTPUTS + o];
            }
        }
        block_barrier();
        const Side own_side[1] = {{actor, 0, WHOLES_OF_NET, own(1 + NETS), own(0)}};
        back_from_outputs<OUTPUTS>(own_side, small.by);
        block_barrier();
        keep_all(call.kept, 0, own(0), first, rows);
        back<HIDDEN - 1, 0>(own_side, [&](int l, int, const float* by) {
            keep(call.slopes + Index(l) * rows * MOST, by, OWN_STRIDE, l, first, rows);
        });
    }
    cluster_barrier();  // what others read of this block has been read
    wait_for_grid(arrived, arrive_at_grid(arrived));
    int         turn    = 0;
    const float squares = gradient_of(actor, call.message, {call.observations, FEATURES, FEATURES}, call.kept, call.slopes,
                                      {call.by_outputs, OUTPUTS, OUTPUTS}, rows, turn);
    if (block_number() == turn) add_up(call.message + call.count, call.sums, SUMS, rows);
    turn = (turn + 1) % block_count();
    if constexpr (STOCHASTIC) {
        if (block_number() == turn) {
            add_up(call.temperature_message, call.by_temperature, 1, rows);
            add_up(call.temperature_message + 1 + ALIVE, call.sums + Index(ALIVE) * rows, 1, rows);
        }
    }
    if (!call.alone) return;
    step(call, call.target, squares, arrived, [&] {
        if constexpr (STOCHASTIC) {
            if (block_number() == turn) step_of_temperature(call);
        }
    });
}
