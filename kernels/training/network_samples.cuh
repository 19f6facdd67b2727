// What network_update.cuh works on: a block's memory, the samples on their way to it, and sums over a tile of them.

constexpr int STRIDE_X = stride_of(FEATURES), STRIDE_1 = stride_of(HIDDEN_1), STRIDE_2 = stride_of(HIDDEN_2);
constexpr int STRIDE_BOTH = STRIDE_1 < STRIDE_2 ? STRIDE_2 : STRIDE_1;
constexpr int COLUMNS     = padded(FEATURES, 8);
constexpr int SUMS        = 6;

// Of 16 rows of a layer's weights: how many a warp has.
constexpr int SLICES_1 = (HIDDEN_1 + TILE - 1) / TILE, SLICES_2 = (HIDDEN_2 + TILE - 1) / TILE;

template <int OUTPUTS> struct UpdateMemory {
    Forward<OUTPUTS>  net;
    Backward<OUTPUTS> back;
    alignas(16) Stored x[TILE * STRIDE_X];
    alignas(16) Stored hidden_1[TILE * STRIDE_1];
    alignas(16) Stored slope_2[TILE * STRIDE_2];  // the loss's derivatives by the sums of the second layer
    // The second layer's activations until the warp that has them is done with them, then the derivatives of the first.
    alignas(16) Stored both[TILE * STRIDE_BOTH];
    alignas(16) float outputs[THREADS * ROW_STRIDE];
    float sums[WARPS][SUMS];
};

static_assert(sizeof(UpdateMemory<PARAMETERS>) <= SHARED_BYTES && sizeof(UpdateMemory<1>) <= SHARED_BYTES);

// What is known of one sample, fetched a tile ahead.
struct Sample {
    int       place, next;  // of this and of the tile after; -1: there is none
    u8        alive;
    float     log_prob, advantage, target, old_value;
    Element   action[WIDTH];
    InputRows x;
};

FN int place_of(const UpdateCall& call, Index number) {
    if (number >= call.rows) return -1;
    return call.indices == nullptr ? int(number) : call.indices[number];
}

template <bool ACTOR> FN void fetch(Sample& sample, const UpdateCall& call, int lane) {
    const int place = sample.place;
    fetch_rows(sample.x, call.observations, from_lane(place, lane / 4), from_lane(place, lane / 4 + 8), lane);
    sample.alive = 0;
    if (place < 0) return;
    sample.alive = call.alive == nullptr ? 1 : call.alive[place];
    if (ACTOR) {
        sample.log_prob  = call.log_probs[place];
        sample.advantage = call.advantages[place];
        UNROLL
        for (int d = 0; d < WIDTH; ++d) sample.action[d] = call.actions[Index(place) * WIDTH + d];
    } else {
        sample.target    = call.returns[place];
        sample.old_value = call.clips_values ? call.old_values[place] : 0.0f;
    }
}

// c += left^T right over the tile's rows, for 16 columns of left; and by_bias += the sums of those.
template <int N>
FN void add_outer(float (&c)[N][4], float (&by_bias)[4], const Stored* left, int left_stride, const Stored* right,
                  int right_stride, int lane) {
    UNROLL
    for (int row = 0; row < TILE; row += DEPTH) {
        const auto         a = Arithmetic::left_columns(left + row * left_stride, left_stride, lane);
        Arithmetic::Right b[N];
        Arithmetic::right_columns(b, right + row * right_stride, right_stride, lane);
        Arithmetic::add_product(by_bias, a, Arithmetic::ones_right());
        UNROLL
        for (int j = 0; j < N; ++j) Arithmetic::add_product(c[j], a, b[j]);
    }
}

// Writes a slice of a layer's gradient.
template <int N>
FN void write_slice(float* weights, float* bias, int row, int columns, const float (&c)[N][4],
                    const float (&by_bias)[4], int lane) {
    UNROLL
    for (int q = 0; q < 4; ++q) {
        const int i = row + lane / 4 + q / 2 * 8;
        UNROLL
        for (int j = 0; j < N; ++j) {
            const int column = 8 * j + lane % 4 * 2 + q % 2;
            if (column < columns) weights[i * columns + column] = c[j][q];
        }
        if (lane % 4 == 0 && q % 2 == 0) bias[i] = by_bias[q];
    }
}
