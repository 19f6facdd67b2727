// The derivatives of a minibatch's loss by the sums of all layers of wide perceptrons, in one launch.
//
// What the weights' gradients are the products of is kept, transposed, for wide_gradient.cuh: of each 64 samples the
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
    static constexpr bool        SHARES = true;
    const Call&                  call;
    Index                        unit;
    const Inputs<KeptTile<NET, 0>>& inputs;
    float (&inverses)[LAYERS][2];
    u32 (&slopes)[LAYERS][SLOPE_WORDS];

    template <int FROM, class Own> FN void load(Own& own) const { own.template load_inputs<true, FROM>(inputs); }
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

template <int NET, class Own, class Call> FN void find_by_inputs(Own& own, const Call& call, Index unit) {
    constexpr int N = padded(BY_INPUTS, 16) / 8;
    float         c[N][4] = {};
    own.template multiply<outs_of(NET, 0)>(c);
    for_accumulators<NET, N, BY_INPUTS>(own, call.rows, unit, [&](int j, int q, Index place) {
        if (place >= 0) call.by_inputs[place] = c[j][q];
    });
    group_barrier();
}

// From the derivatives by a layer's sums, which are the rows, to those by the sums of the layer before, and so on.
template <int NET, int L, class Own, class Tile> FN void go_back(Own& own, const Tile& forth) {
    constexpr int N = in_of(NET, L) / 8, FEW = N / int(sizeof(Stored)), FIRST = alike_from(NET, L - 1);
    constexpr u32 ASIDE = L == LAYERS - 1 ? LossOfRows<NET>::ASIDE : 0;
    const auto&   call  = forth.call;
    ROLLED
    for (int ahead = L - 1 - FIRST; ahead >= 0; --ahead) {  // to layer FIRST + ahead
        const auto multiply = [&](float (&c)[N][4]) {
            const bool first = ahead == L - 1 - FIRST;
            own.template multiply<outs_of(NET, L)>(c, !first, first ? ASIDE : 0);
        };
        const int at   = bias_of(NET, FIRST) + ahead * 8 * N;
        auto&     kept = kept_tile<NET, LAYERS + FIRST>(call, forth.unit, ahead);
        float     c[N][4] = {};
        if constexpr (NORM) {
            float inverse[2] = {};
            recall(inverse, forth.inverses, FIRST + ahead);
            multiply(c);
            chain_norm(c, kept, inverse, own.memory.gains + at, own.memory.shifts + at, norm_sums(call) + at);
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
            const auto&   slopes = kept_tile<NET, FIRST + (SLOPE_BY_VALUE ? 1 : LAYERS)>(call, forth.unit, ahead);
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
        if (keeps_of(call)) kept.store_rounded(c);
        group_barrier();  // all products with the rows are done
        if (FIRST + ahead == 0 && (BY_INPUTS == 0 || !reaches_inputs(call))) return;
        own.store(c);
        publish();
        group_barrier();
    }
    if constexpr (FIRST > 0) go_back<NET, FIRST>(own, forth);
    else if constexpr (BY_INPUTS > 0) find_by_inputs<NET>(own, call, forth.unit);
}

// A tile's samples are known a tile ahead, and their places two.
template <int NET> struct WideLearner {
    LossOfRows<NET> loss;
    int             after_next;

    FN explicit WideLearner(const UpdateCall& call) : loss(call) {}

    FN int place_at(const UpdateCall& call, Index unit) const {
        return place_of(call, unit * GROUP_ROWS + thread_rank() % GROUP / WARP * WARP_ROWS + warp_lane() % WARP_ROWS);
    }
    FN void begin(const UpdateCall& call, Index unit, Index next) {
        loss.fetch(call, place_at(call, unit));
        after_next = place_at(call, next);
    }
    template <class Own>
    FN void learn(Own& own, const UpdateCall& call, const Scale& scale, Index unit, Index unit_after_next) {
        const auto now = loss.sample;
        float      inverses[LAYERS][2] = {};
        u32        slopes[LAYERS][SLOPE_WORDS] = {};
        // (What the dead saw may be no number: it must not meet even a zero.)
        const Inputs<KeptTile<NET, 0>> inputs = {
            call.observations, now.alive ? now.place : -1, scale,
            keeps_of(call) ? &kept_tile<NET, 0>(call, unit) : nullptr, {nullptr, 0}};
        const Keeping<NET, UpdateCall> tile = {call, unit, inputs, inverses, slopes};
        own.template load_inputs<true, 0>(inputs);
        loss.fetch(call, after_next);
        after_next = place_at(call, unit_after_next);
        publish();
        group_barrier();
        go_forth<NET, 0>(own, tile, [&](float (&c)[outs_of(NET, LAYERS - 1) / 8][4]) {
            loss.take_back(own, call, now, unit, c, kept_tile<NET, 2 * LAYERS - 1>(call, unit));
        });
        publish();
        group_barrier();
        go_back<NET, LAYERS - 1>(own, tile);
    }
};

template <int NET> FN void update(const UpdateCall& call, int worker, int workers) {
    auto&            memory = WideMemory::of_block();
    const Scale      scale  = {call.mean, call.inverse, call.limit};
    const Index      tiles  = (call.rows + GROUP_TILE - 1) / GROUP_TILE;
    const bool       last   = BY_INPUTS == 0 || reaches_inputs(call);
    const auto       weights = begin_network<NET, STEPS>(memory, call, scale, turns_of(worker, workers, tiles), last);
    WideLearner<NET> learner(call);
    Rowwise<Weights<NET, STEPS>> own(memory, weights);
    const Index group = own.group, step = workers * GROUPS;
    for (int j = own.lane; j < 2 * NORMED; j += WARP) norm_sums(call)[j] = 0;
    warp_barrier();
    learner.begin(call, worker * Index(GROUPS) + group, worker * Index(GROUPS) + group + step);
    for (Index tile = worker; tile < tiles; tile += workers) {
        learner.learn(own, call, scale, tile * GROUPS + group, tile * GROUPS + group + 2 * step);
    }
    float* const sums = call.sums + SUMS_OF_BLOCK * block_number();
    learner.loss.write(own, sums);
    block_barrier();
    for (int j = thread_rank(); j < 2 * NORMED; j += THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += call.norm_sums[(block_number() * Index(WARPS) + w) * (2 * NORMED) + j];
        sums[SUMS_OF_LOSS + LOG_STDS + j] = sum;
    }
}

KERNEL_OF_BLOCKS(kernel_update, UpdateCall, THREADS, 1) {
    const int actors = call.actors, block = block_number();
    if (block < actors) update<0>(call, block, actors);
    else if constexpr (NETS > 1) update<1>(call, block - actors, block_count() - actors);
}
