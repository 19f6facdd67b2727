// SAC, TD3 and DDPG with a small batch: a launch updates the critics, another the actor. Hopper GPUs only.
//
// A cluster of 8 blocks takes 16 rows through all layers. Each block computes the full first layer, and its slice of
// later hidden layers, an eighth of the columns. Outputs and gradients of a layer's inputs are sums over the blocks.
// Weights are read from the L2 cache. Products are in TF32; output layers, losses and biases in float32.
//
// Generated before it, besides the constants of losses.cuh: HIDDEN (layers), width_of(l) of a hidden layer; offsets of
// parameters, critic_weights(net, l), critic_biases(net, l), actor_weights(l), actor_biases(l), l up to HIDDEN;
// activation(x), and slope(y), its derivative where its value is y; MAX_WIDTH of a layer, the stride of rows in memory;
// MAX_OUTPUTS of an actor.

constexpr int THREADS = 256, WARPS = THREADS / WARP, ROWS = 16;
constexpr int CLUSTER = 8;  // blocks; the portable maximum

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

// Reads from the shared memory of block `rank` of the cluster, at the address that is `local` in this block.
FN void read_remote(float& value, const float* local, int rank) {
    u32 address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(local)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
}
FN void read_remote(Wide<4>& four, const float* local, int rank) {
    u32 address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(local)), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(four.value[0]), "=f"(four.value[1]), "=f"(four.value[2]), "=f"(four.value[3])
                 : "r"(address) : "memory");
}

// Sums over the blocks of the cluster, in the order of their ranks.
FN float cluster_sum(const float* local) {
    float value[CLUSTER], sum = 0;
    UNROLL
    for (int rank = 0; rank < CLUSTER; ++rank) read_remote(value[rank], local, rank);
    UNROLL
    for (int rank = 0; rank < CLUSTER; ++rank) sum += value[rank];
    return sum;
}
FN Wide<4> cluster_sum_of_four(const float* local) {
    Wide<4> four[CLUSTER], sum = {};
    UNROLL
    for (int rank = 0; rank < CLUSTER; ++rank) read_remote(four[rank], local, rank);
    FOR_EACH_NUMBER(rank, e, CLUSTER) sum.value[e] += four[rank].value[e];
    return sum;
}

// --- shared memory ---

// The strides avoid bank conflicts.
constexpr int INPUT_STRIDE = (INPUTS + 7) / 8 * 8 + 4, LAYER_STRIDE = MAX_WIDTH + 20;
constexpr int SLICE_STRIDE = MAX_WIDTH / CLUSTER + 4;
constexpr int MAX_NETS = 1 + NETS;  // that run forward at once
constexpr int LAYER_TILES_OF_NET = HIDDEN > 1 ? HIDDEN - 1 : 1;
constexpr int LAYER_TILES =
    maximum(2 * NETS * LAYER_TILES_OF_NET, (1 + NETS) * LAYER_TILES_OF_NET + (HIDDEN > 2 ? NETS : 0));
constexpr int SLICE_TILES = 2 * NETS + 1, PARTIAL_SUMS = WARPS * ROWS * 8;
static_assert(OUTPUTS <= MAX_OUTPUTS && INPUTS <= MAX_WIDTH);

constexpr int LAYERS_AT = 2 * ROWS * INPUT_STRIDE, SLICES_AT = LAYERS_AT + LAYER_TILES * ROWS * LAYER_STRIDE;
constexpr int PARTIAL_AT    = SLICES_AT + SLICE_TILES * ROWS * SLICE_STRIDE;
constexpr int ROW_VALUES_AT = PARTIAL_AT + MAX_NETS * PARTIAL_SUMS;
FN float* input_tile(int i)   { return staging + i * (ROWS * INPUT_STRIDE); }
FN float* layer_tile(int i)   { return staging + LAYERS_AT + i * (ROWS * LAYER_STRIDE); }
FN float* slice_tile(int i)   { return staging + SLICES_AT + i * (ROWS * SLICE_STRIDE); }
FN float* partial_sums(int i) { return staging + PARTIAL_AT + i * PARTIAL_SUMS; }

// Outputs and gradients of the 16 rows. Members ending in _part are this block's terms of sums over the cluster.
struct RowValues {
    float outputs_part[ROWS * OUTPUTS], q_part[2 * NETS][ROWS], grad_actions_part[ROWS * WIDTH];
    float outputs[ROWS * OUTPUTS], q[2 * NETS][ROWS], grad_actions[ROWS * WIDTH], grad_q[NETS][ROWS];
    float grad_outputs[1][ROWS * OUTPUTS];
};
FN RowValues& row_values() { return *reinterpret_cast<RowValues*>(staging + ROW_VALUES_AT); }

// If a block needs at most half of a multiprocessor's shared memory, two fit on it. Then all clusters find room, though
// groups of multiprocessors differ in size from device to device.
constexpr int STAGED_ROWS = 256, TILE_INPUTS = 32;  // of gradient_tile
constexpr int SHARED_BYTES =
    maximum(4 * ROW_VALUES_AT + int(sizeof(RowValues)), 4 * STAGED_ROWS * (MAX_OUTPUTS + TILE_INPUTS));
constexpr int BLOCKS = SHARED_BYTES <= 113 * 1024 ? 2 : 1;

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
FN constexpr int slice_width(int l) { return width_of(l) / CLUSTER; }
FN int           slice_begin(int l) { return cluster_rank() * slice_width(l); }

// Numbers of a slice's tile per thread.
FN constexpr int numbers_each(int columns) { return (ROWS * columns + THREADS - 1) / THREADS; }

FN Wide<4> four(const float* at) { return *reinterpret_cast<const Wide<4>*>(at); }
FN u32     rounded(float x)      { return Tf32::rounded(x); }

// Loads a tile. A row has `columns` numbers of `rows`, then `more_columns` of `more`, then zeros; rows from `count` on
// are zero.
FN void load_tile(float* tile, const float* rows, int columns, const float* more, int more_columns, int first_row,
                  int count) {
    _Pragma("unroll 2")
    for (int i = thread_rank(); i < ROWS * INPUT_STRIDE; i += THREADS) {
        const int   tile_row = i / INPUT_STRIDE, k = i % INPUT_STRIDE;
        const Index row = first_row + tile_row;
        float       x   = 0;
        if (row < count && k < columns + more_columns) {
            x = k < columns ? rows[row * columns + k] : more[row * more_columns + k - columns];
        }
        tile[i] = x;
    }
}

// Stores this block's columns of layer l, from a tile to rows `first_row` and on of an array [count, MAX_WIDTH].
FN void store_slice(float* rows, const float* tile, int stride, int l, int first_row, int count) {
    const int fours = slice_width(l) / 4;
    NO_UNROLL
    for (int i = thread_rank(); i < ROWS * fours; i += THREADS) {
        const int row = i / fours, k = i % fours * 4;
        if (first_row + row < count) {
            float* const to = rows + Index(first_row + row) * MAX_WIDTH + slice_begin(l) + k;
            *reinterpret_cast<Wide<4>*>(to) = four(tile + row * stride + k);
        }
    }
}

// Stores this block's columns of a net's hidden layers in an array [HIDDEN, count, MAX_WIDTH]; `last` is the last
// layer's tile.
FN void store_activations(float* activations, int first_tile, const float* last, int first_row, int count) {
    NO_UNROLL
    for (int l = 0; l < HIDDEN - 1; ++l) {
        const float* const slice = layer_tile(first_tile + l) + slice_begin(l);
        store_slice(activations + Index(l) * count * MAX_WIDTH, slice, LAYER_STRIDE, l, first_row, count);
    }
    store_slice(activations + Index(HIDDEN - 1) * count * MAX_WIDTH, last, SLICE_STRIDE, HIDDEN - 1, first_row, count);
}
