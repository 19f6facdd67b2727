// What an update of wide perceptrons keeps of a tile of samples, and the tile's way back.
//
// The products of which the weights' gradients are made in gradient.cuh are of what is kept, transposed: of each 64 samples
// the inputs, the activations of hidden layers, and the derivatives by all layers' sums. Where those gradients are not
// wanted no more is kept than the way back needs: relu's slopes, a bit each, find room in registers.

// Where the derivatives by outputs begin among the rows: those by a box's lie behind its outputs.
template <class Net> constexpr u32 ASIDE = Net::HAS_POLICY && !DISCRETE ? Layout<typename Net::Shape>::OUTPUTS_BYTES : 0;

// Whether the gradient of the weights is wanted, and whether the way back reaches the inputs.
template <class Net, class Call> FN bool keeps_of(const Call& call) {
    if constexpr (Net::FUNCTIONS) return call.weights != 0;
    else return true;
}
template <class Net, class Call> FN bool reaches_inputs(const Call& call) {
    if constexpr (Net::FUNCTIONS) return call.by_inputs != nullptr;
    else return false;
}

template <class Net> constexpr bool SLOPE_IS_BIT = ACTIVATION == RELU && !Net::NORM;
template <class Net> constexpr int  SLOPE_WORDS  = SLOPE_IS_BIT<Net> ? 4 : 1;  // of a thread's part of a layer's slopes

template <class Net, int NUMBER> using KeptTile = GroupTile<Net::kept_lines(NUMBER), GROUP_ROWS>;
template <class Net, int NUMBER, class Call>
FN KeptTile<Net, NUMBER>& kept_tile(const Call& call, Index unit, int ahead = 0) {
    return *reinterpret_cast<KeptTile<Net, NUMBER>*>(kept_of<Net>(call, NUMBER, unit, ahead));
}

// What a thread knows of each layer, at a place that is worked out and in registers all the same.
template <class T, int LAYERS, int N> FN void note(T (&all)[LAYERS][N], int layer, const T (&of_layer)[N]) {
    UNROLL
    for (int l = 0; l < LAYERS; ++l) {
        UNROLL
        for (int i = 0; i < N; ++i) all[l][i] = l == layer ? of_layer[i] : all[l][i];
    }
}
template <class T, int LAYERS, int N> FN void recall(T (&of_layer)[N], const T (&all)[LAYERS][N], int layer) {
    UNROLL
    for (int l = 0; l < LAYERS; ++l) {
        UNROLL
        for (int i = 0; i < N; ++i) of_layer[i] = l == layer ? all[l][i] : of_layer[i];
    }
}

// A tile of samples: what is kept on its way forth.
template <class Net, class Call> struct Keeping {
    const Call& call;
    Index       unit;
    float (&inverses)[Net::LAYERS][2];
    u32 (&slopes)[Net::LAYERS][SLOPE_WORDS<Net>];

    template <int L, int N> FN void sums(const float (&c)[N][4], const float (&inverse)[2], int ahead) const {
        if (Net::NORM || !SLOPE_BY_VALUE) {
            auto& kept = kept_tile<Net, Net::LAYERS + L>(call, unit, ahead);
            kept.store_pairs(c, [](Stored* at, float x, float y) {
                Arithmetic::store_pair(at, Net::NORM ? x : slope_at(x), Net::NORM ? y : slope_at(y));
            });
        }
        if (Net::NORM) note(inverses, L + ahead, inverse);
    }
    template <int L, int N> FN void activations(const float (&c)[N][4], int ahead) const {
        if constexpr (SLOPE_IS_BIT<Net>) {
            u32 words[SLOPE_WORDS<Net>] = {};  // each of 64 columns, the first one's the highest
            UNROLL
            for (int word = 0; word < SLOPE_WORDS<Net>; ++word) {
                UNROLL
                for (int j = 8 * word; 8 * word < N && j < 8 * word + 8; ++j) {
                    UNROLL
                    for (int q = 0; q < 4; ++q) words[word] = __funnelshift_l(bits_of(0.0f - c[j][q]), words[word], 1);
                }
                asm volatile("" : "+r"(words[word]));  // now, and not where they are used
            }
            note(slopes, L + ahead, words);
        }
        if (keeps_of<Net>(call) || (SLOPE_BY_VALUE && !Net::NORM && !SLOPE_IS_BIT<Net>)) {
            kept_tile<Net, 1 + L>(call, unit, ahead).store_rounded(c);
        }
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
        FOR_EACH_NUMBER(j, q, COUNT) {
            const float kept = at(j, q % 2, q / 2);
            by[from + j][q] *= SLOPE_BY_VALUE ? slope(kept) : kept;
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
// of them. The warp's sums of the derivatives by gains, and Net::NORMED behind them those by shifts, lie at `found`.
template <class Net, int N, class Tile>
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
        const float  before[2] = {at[0], at[Net::NORMED]};
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
        at[Net::NORMED] = before[1] + over_columns(by_shift);
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
        FOR_EACH_NUMBER(j, q, FEW) {
            const int h = q / 2;
            float&    by = c[from + j][q];
            by = inverse[h] * (by - mean[h] - x.at(j, q % 2, h) * product[h]);
        }
    }
}

// Where a warp adds up the derivatives by gains and shifts.
template <class Net, class Call> FN float* norm_sums(const Call& call) {
    return call.norm_sums + (block_number() * Index(WARPS) + thread_rank() / WARP) * (2 * Net::NORMED);
}

// From the derivatives by the activations of layer FIRST + ahead, which `multiply(c)` adds to zeros, to those by its sums.
template <class Net, int FIRST, int N, class Own, class Tile, class Multiply>
FN void chain_layer(float (&c)[N][4], const Own& own, const Tile& forth, int ahead, const Multiply& multiply) {
    constexpr int FEW = N / int(sizeof(Stored));
    if constexpr (Net::NORM) {
        const int at = Net::bias_of(FIRST) + ahead * 8 * N;
        float     inverse[2] = {};
        recall(inverse, forth.inverses, FIRST + ahead);
        multiply(c);
        chain_norm<Net>(c, kept_tile<Net, Net::LAYERS + FIRST>(forth.call, forth.unit, ahead), inverse, own.numbers.gains + at,
                   own.numbers.shifts + at, norm_sums<Net>(forth.call) + at);
    } else if constexpr (SLOPE_IS_BIT<Net>) {
        u32 slopes[SLOPE_WORDS<Net>] = {};
        multiply(c);
        recall(slopes, forth.slopes, FIRST + ahead);
        FOR_EACH_NUMBER(j, q, N) {
            if ((slopes[j / 8] >> (31 - (j % 8 * 4 + q)) & 1) == 0) c[j][q] = 0;
        }
    } else {
        const auto&   slopes = kept_tile<Net, FIRST + (SLOPE_BY_VALUE ? 1 : Net::LAYERS)>(forth.call, forth.unit, ahead);
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
    if (keeps_of<Net>(forth.call)) kept_tile<Net, Net::LAYERS + FIRST>(forth.call, forth.unit, ahead).store_rounded(c);
}

// --- a tile of samples forth and back: its rows lie in shared memory, and weights stream ---

template <class Net, class Call> struct KeepingRows : Keeping<Net, Call> {
    static constexpr bool           SHARES = true;
    const Inputs<KeptTile<Net, 0>>& inputs;

    FN KeepingRows(const Keeping<Net, Call>& keeping, const Inputs<KeptTile<Net, 0>>& inputs_)
        : Keeping<Net, Call>(keeping), inputs(inputs_) {}
    template <int FROM, class Own> FN void load(Own& own) const { own.template load_inputs<true, FROM>(inputs); }
};

template <class Net, class Own, class Call> FN void find_by_inputs(Own& own, const Call& call, Index unit) {
    constexpr int N = padded(Net::BY_INPUTS, 16) / 8;
    float         c[N][4] = {};
    own.template multiply<Net::outs_of(0)>(c);
    for_accumulators<Net, N, Net::BY_INPUTS>(own, call.rows, unit, [&](int j, int q, Index place) {
        if (place >= 0) call.by_inputs[place] = c[j][q];
    });
    group_barrier();
}

// From the derivatives by a layer's sums, which are the rows, to those by the sums of the layer before, and so on.
template <class Net, int L, class Own, class Tile> FN void go_back(Own& own, const Tile& forth) {
    constexpr int N = Net::in_of(L) / 8, FIRST = Net::alike_from(L - 1);
    constexpr u32 aside = L == Net::LAST ? ASIDE<Net> : 0;
    ROLLED
    for (int ahead = L - 1 - FIRST; ahead >= 0; --ahead) {  // to layer FIRST + ahead
        float c[N][4] = {};
        chain_layer<Net, FIRST>(c, own, forth, ahead, [&](float (&sums)[N][4]) {
            const bool first = ahead == L - 1 - FIRST;
            own.template multiply<Net::outs_of(L)>(sums, !first, first ? aside : 0);
        });
        group_barrier();  // all products with the rows are done
        if (FIRST + ahead == 0 && (Net::BY_INPUTS == 0 || !reaches_inputs<Net>(forth.call))) return;
        own.store(c);
        publish();
        group_barrier();
    }
    if constexpr (FIRST > 0) go_back<Net, FIRST>(own, forth);
    else if constexpr (Net::BY_INPUTS > 0) find_by_inputs<Net>(own, forth.call, forth.unit);
}

// The samples at `place`, one for each of a warp's rows; `go_on()` fetches what is known ahead, `take_back(c, kept)` makes
// derivatives of the outputs, and rows of them.
template <class Source, class Call, class GoOn, class TakeBack>
FN void learn_tile(Rowwise<Source>& own, const Call& call, const Scale& scale, Index unit, int place,
                   const GoOn& go_on, const TakeBack& take_back) {
    using Net = typename Source::Of;
    float inverses[Net::LAYERS][2] = {};
    u32   slopes[Net::LAYERS][SLOPE_WORDS<Net>] = {};
    const Inputs<KeptTile<Net, 0>> inputs = {
        call.observations, place, scale, keeps_of<Net>(call) ? &kept_tile<Net, 0>(call, unit) : nullptr, {nullptr, 0}};
    const KeepingRows<Net, Call> tile({call, unit, inverses, slopes}, inputs);
    own.template load_inputs<true, 0>(inputs);
    go_on();
    publish();
    group_barrier();
    go_forth<Net, 0>(own, tile, [&](Outputs<Net>& c) { take_back(c, kept_tile<Net, 2 * Net::LAYERS - 1>(call, unit)); });
    publish();
    group_barrier();
    go_back<Net, Net::LAYERS - 1>(own, tile);
}

// --- the same where all weights lie in shared memory, and rows in registers ---

// A layer's packed weights, LINES outputs of them, as the right factor on the way back: the depth goes across lines.
template <int LINES> struct LinesAcross {
    static_assert(LINES > 0 && LINE == 128);
    u32 low;
    FN explicit LinesAcross(u32 address) : low(u32(LINES * LINE / 16) << 16 | (address & 0x3FFFF) / 16) {}
    FN u64 at(int step) const { return u64(1u << 30 | 8 * LINE / 16) << 32 | (low + u32(step * DEPTH * LINE / 16)); }
};

template <class Net, int L, int STEPS_OF_ROWS, class Tile>
FN void go_back(const ResidentRows<Net>& own, const Left (&rows)[STEPS_OF_ROWS], const Tile& forth) {
    constexpr int N = Net::in_of(L) / 8;
    static_assert(STEPS_OF_ROWS * DEPTH == Net::outs_of(L));
    float c[N][4] = {};
    chain_layer<Net, L - 1>(c, own, forth, 0, [&](float (&sums)[N][4]) {
        const LinesAcross<Net::outs_of(L)> right(own.weights + Net::packed_bytes(L));
        own.multiply(sums, [&] {
            UNROLL
            for (int step = 0; step < STEPS_OF_ROWS; ++step) Product<8 * N>::add_across(sums, rows[step].x, right.at(step), true);
        });
    });
    if constexpr (L > 1) {
        Left before[8 * N / DEPTH];
        gather(before, c);
        go_back<Net, L - 1>(own, before, forth);
    }
}

template <class Net, class Call, class GoOn, class TakeBack>
FN void learn_tile(ResidentRows<Net>& own, const Call& call, const Scale& scale, Index unit, int place,
                   const GoOn& go_on, const TakeBack& take_back) {
    float                    inverses[Net::LAYERS][2] = {};
    u32                      slopes[Net::LAYERS][SLOPE_WORDS<Net>] = {};
    const Keeping<Net, Call> tile = {call, unit, inverses, slopes};
    InputsOfWarp<Net>        x;
    load_inputs(x, own, call.observations, place);
    go_on();
    normalise_inputs(x, own, scale, {nullptr, 0});
    FOR_EACH_NUMBER(j, q, WITH_ONE<Net> / 8) {
        if (8 * j + own.lane % 4 * 2 + q % 2 == Net::FEATURES) x[j][q] = 1.0f;  // by which no weight multiplies
    }
    kept_tile<Net, 0>(call, unit).store_rounded(x);
    Left rows[WITH_ONE<Net> / DEPTH];
    gather(rows, x);
    go_forth<Net, 0>(own, rows, tile, [&](Outputs<Net>& c) {
        take_back(c, kept_tile<Net, 2 * Net::LAYERS - 1>(call, unit));
        Left by_outputs[Net::outs_of(Net::LAYERS - 1) / DEPTH];
        gather(by_outputs, c);
        go_back<Net, Net::LAYERS - 1>(own, by_outputs, tile);
    });
}

// What a block learns with.
template <class Net, class Call> FN auto begin_rows(const Call& call, const Scale& scale, u32 tiles) {
    if constexpr (RESIDENT<typename Net::Shape>) {
        return begin_resident<Net>(call, scale);
    } else {
        const bool last = Net::BY_INPUTS == 0 || reaches_inputs<Net>(call);
        return Rowwise<Weights<Net, Net::STEPS>>(begin_network<Net, Net::STEPS>(call, scale, tiles, last));
    }
}
