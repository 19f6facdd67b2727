// What an update of wide perceptrons keeps of a tile of samples, and what it recalls on the way back.
//
// The products of which the weights' gradients are made in gradient.cuh are of it, transposed: of each 64 samples the
// inputs, the activations of hidden layers, and the derivatives by all layers' sums. Where those gradients are not wanted
// no more is kept than the way back needs: relu's slopes, a bit each, find room in registers.

constexpr bool SLOPE_IS_BIT = ACTIVATION == RELU && !NORM;
constexpr int  SLOPE_WORDS  = SLOPE_IS_BIT ? 4 : 1;  // of a thread's part of a layer's slopes

template <int NET, int NUMBER> using KeptTile = GroupTile<kept_lines(NET, NUMBER), GROUP_ROWS>;
template <int NET, int NUMBER, class Call>
FN KeptTile<NET, NUMBER>& kept_tile(const Call& call, Index unit, int ahead = 0) {
    return *reinterpret_cast<KeptTile<NET, NUMBER>*>(kept_of<NET>(call, NUMBER, unit, ahead));
}

// What a thread knows of each layer, at a place that is worked out and in registers all the same.
template <class T, int N> FN void note(T (&all)[LAYERS][N], int layer, const T (&of_layer)[N]) {
    UNROLL
    for (int l = 0; l < LAYERS; ++l) {
        UNROLL
        for (int i = 0; i < N; ++i) all[l][i] = l == layer ? of_layer[i] : all[l][i];
    }
}
template <class T, int N> FN void recall(T (&of_layer)[N], const T (&all)[LAYERS][N], int layer) {
    UNROLL
    for (int l = 0; l < LAYERS; ++l) {
        UNROLL
        for (int i = 0; i < N; ++i) of_layer[i] = l == layer ? all[l][i] : of_layer[i];
    }
}

// A tile of samples: what is kept on its way forth.
template <int NET, class Call> struct Keeping {
    const Call&                  call;
    Index                        unit;
    float (&inverses)[LAYERS][2];
    u32 (&slopes)[LAYERS][SLOPE_WORDS];

    template <int L, int N> FN void sums(const float (&c)[N][4], const float (&inverse)[2], int ahead) const {
        if (NORM || !SLOPE_BY_VALUE) {
            auto& kept = kept_tile<NET, LAYERS + L>(call, unit, ahead);
            kept.store_pairs(c, [](Stored* at, float x, float y) {
                Arithmetic::store_pair(at, NORM ? x : slope_at(x), NORM ? y : slope_at(y));
            });
        }
        if (NORM) note(inverses, L + ahead, inverse);
    }
    template <int L, int N> FN void activations(const float (&c)[N][4], int ahead) const {
        if constexpr (SLOPE_IS_BIT) {
            u32 words[SLOPE_WORDS] = {};  // each of 64 columns, the first one's the highest
            UNROLL
            for (int word = 0; word < SLOPE_WORDS; ++word) {
                UNROLL
                for (int j = 8 * word; 8 * word < N && j < 8 * word + 8; ++j) {
                    UNROLL
                    for (int q = 0; q < 4; ++q) words[word] = __funnelshift_l(bits_of(0.0f - c[j][q]), words[word], 1);
                }
                asm volatile("" : "+r"(words[word]));  // now, and not where they are used
            }
            note(slopes, L + ahead, words);
        }
        if (keeps_of(call) || (SLOPE_BY_VALUE && !NORM && !SLOPE_IS_BIT)) kept_tile<NET, 1 + L>(call, unit, ahead).store_rounded(c);
    }
};

// Activations of COUNT times 8 columns on their way back to registers, where their words stay until they are used.
template <int COUNT> struct Recalled {
    static constexpr int WORDS = sizeof(Stored) / 2;
    u32 words[COUNT][2][WORDS];
    template <class Tile> FN void fetch(const Tile& tile, int from) {
        UNROLL
        for (int p = 0; p < 2; ++p) {
            const Stored* const first = tile.of_thread(p);
            UNROLL
            for (int j = 0; j < COUNT; ++j) {
                Arithmetic::read_words(words[j][p], first + (from + j) * 8 * Tile::EACH);
            }
        }
    }
    FN float at(int j, int p, int h) const { return Arithmetic::pair_of(words[j][p]).value[h]; }
    template <int N> FN void chain_with(float (&by)[N][4], int from) const {
        UNROLL
        for (int j = 0; j < COUNT; ++j) {
            UNROLL
            for (int q = 0; q < 4; ++q) {
                const float kept = at(j, q % 2, q / 2);
                by[from + j][q] *= SLOPE_BY_VALUE ? slope(kept) : kept;
            }
        }
    }
};

// Adds up eight columns' numbers over the rows of a warp: each thread has the sum of one column, that of a number.
FN int   own_column() { return warp_lane() / 4 % 2 * 16 + warp_lane() / 8 % 2 * 8 + warp_lane() % 4 * 2 + warp_lane() / 16; }
FN float over_columns(float (&x)[4][2]) {
    float half[4], pair[2];
    UNROLL
    for (int i = 0; i < 4; ++i) {
        const bool upper = warp_lane() / 4 % 2 != 0;
        const float low = x[i / 2][i % 2], high = x[2 + i / 2][i % 2];
        half[i] = (upper ? high : low) + from_lane_across(upper ? low : high, 4);
    }
    UNROLL
    for (int i = 0; i < 2; ++i) {
        const bool upper = warp_lane() / 8 % 2 != 0;
        pair[i] = (upper ? half[2 + i] : half[i]) + from_lane_across(upper ? half[i] : half[2 + i], 8);
    }
    const bool upper = warp_lane() / 16 != 0;
    return (upper ? pair[1] : pair[0]) + from_lane_across(upper ? pair[0] : pair[1], 16);
}

// From the derivatives by activations to those by the sums before they were normalised, of which `tile` has what became
// of them. The warp's sums of the derivatives by gains, and NORMED behind them those by shifts, lie at `found`.
template <int N, class Tile>
FN void chain_norm(float (&c)[N][4], const Tile& tile, const float (&inverse)[2], const float* gains, const float* shifts,
                   float* found) {
    constexpr int FEW = 4;
    Recalled<FEW> x;
    float         mean[2] = {}, product[2] = {};
    UNROLL
    for (int from = 0; from < N; from += FEW) {
        asm volatile("" ::: "memory");
        x.fetch(tile, from);
        UNROLL
        for (int j = 0; j < FEW; ++j) {
            const int     column = 8 * (from + j) + warp_lane() % 4 * 2;
            const Wide<2> gain = read_anew(gains + column), shift = read_anew(shifts + column);
            UNROLL
            for (int q = 0; q < 4; ++q) {
                c[from + j][q] *= slope_at(fma(x.at(j, q % 2, q / 2), gain.value[q % 2], shift.value[q % 2]));
            }
        }
    }
    UNROLL
    for (int from = 0; from < N; from += FEW) {
        float by_gain[FEW][2] = {}, by_shift[FEW][2] = {};
        asm volatile("" ::: "memory");
        x.fetch(tile, from);
        float* const at     = found + 8 * from + own_column();
        const float  before[2] = {at[0], at[NORMED]};
        UNROLL
        for (int j = 0; j < FEW; ++j) {
            const int     column = 8 * (from + j) + warp_lane() % 4 * 2;
            const Wide<2> gain = read_anew(gains + column), shift = read_anew(shifts + column);
            UNROLL
            for (int q = 0; q < 4; ++q) {
                const int   p = q % 2, h = q / 2;
                const float kept = x.at(j, p, h);
                float&      by   = c[from + j][q];
                by_shift[j][p] += by;
                by_gain[j][p] = fma(by, kept, by_gain[j][p]);
                by *= gain.value[p];
                mean[h] += by;
                product[h] = fma(by, kept, product[h]);
            }
        }
        at[0]      = before[0] + over_columns(by_gain);
        at[NORMED] = before[1] + over_columns(by_shift);
    }
    UNROLL
    for (int h = 0; h < 2; ++h) {
        mean[h]    = over_row_sum(mean[h]) * (1.0f / float(8 * N));
        product[h] = over_row_sum(product[h]) * (1.0f / float(8 * N));
    }
    UNROLL
    for (int from = 0; from < N; from += FEW) {
        asm volatile("" ::: "memory");
        x.fetch(tile, from);
        UNROLL
        for (int j = 0; j < FEW; ++j) {
            UNROLL
            for (int q = 0; q < 4; ++q) {
                const int h = q / 2;
                float&    by = c[from + j][q];
                by = inverse[h] * (by - mean[h] - x.at(j, q % 2, h) * product[h]);
            }
        }
    }
}

// Where a warp adds up the derivatives by gains and shifts.
template <class Call> FN float* norm_sums(const Call& call) {
    return call.norm_sums + (block_number() * Index(WARPS) + thread_rank() / WARP) * (2 * NORMED);
}

// From the derivatives by the activations of layer FIRST + ahead, which `multiply(c)` adds to zeros, to those by its sums.
template <int NET, int FIRST, int N, class Own, class Tile, class Multiply>
FN void chain_layer(float (&c)[N][4], const Own& own, const Tile& forth, int ahead, const Multiply& multiply) {
    constexpr int FEW = N / int(sizeof(Stored));
    if constexpr (NORM) {
        const int at = bias_of(NET, FIRST) + ahead * 8 * N;
        float     inverse[2] = {};
        recall(inverse, forth.inverses, FIRST + ahead);
        multiply(c);
        chain_norm(c, kept_tile<NET, LAYERS + FIRST>(forth.call, forth.unit, ahead), inverse, own.numbers.gains + at,
                   own.numbers.shifts + at, norm_sums(forth.call) + at);
    } else if constexpr (SLOPE_IS_BIT) {
        u32 slopes[SLOPE_WORDS] = {};
        multiply(c);
        recall(slopes, forth.slopes, FIRST + ahead);
        UNROLL
        for (int j = 0; j < N; ++j) {
            UNROLL
            for (int q = 0; q < 4; ++q) {
                if ((slopes[j / 8] >> (31 - (j % 8 * 4 + q)) & 1) == 0) c[j][q] = 0;
            }
        }
    } else {
        const auto&   slopes = kept_tile<NET, FIRST + (SLOPE_BY_VALUE ? 1 : LAYERS)>(forth.call, forth.unit, ahead);
        Recalled<FEW> some;  // so many words find room beside the sums
        some.fetch(slopes, 0);
        multiply(c);
        some.chain_with(c, 0);
        UNROLL
        for (int from = FEW; from < N; from += FEW) {
            asm volatile("" ::: "memory");
            some.fetch(slopes, from);
            some.chain_with(c, from);
        }
    }
    round_once(c);
    if (keeps_of(forth.call)) kept_tile<NET, LAYERS + FIRST>(forth.call, forth.unit, ahead).store_rounded(c);
}
