// The derivatives of a minibatch's loss by the sums of all layers of wide perceptrons, in one launch.
//
// What the weights' gradients are the products of is kept, transposed, for wide_gradient.cuh: of each 64 samples the
// inputs, the activations of hidden layers, and the derivatives by all layers' sums.

template <int NET, int NUMBER> using KeptTile = GroupTile<kept_lines(NET, NUMBER), GROUP_ROWS>;
template <int NET, int NUMBER> FN KeptTile<NET, NUMBER>& kept_tile(const UpdateCall& call, Index unit) {
    return *reinterpret_cast<KeptTile<NET, NUMBER>*>(kept_of<NET>(call, NUMBER, unit));
}

template <int NET> struct Keeper {
    const UpdateCall& call;
    Index             unit;
    template <int L, int N> FN void of(const float (&c)[N][4]) const { kept_tile<NET, 1 + L>(call, unit).store_rows(c); }
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
    template <int N> FN void chain_with(float (&by)[N][4], int from) const {
        UNROLL
        for (int j = 0; j < COUNT; ++j) {
            UNROLL
            for (int p = 0; p < 2; ++p) {
                const Wide<2> pair = Arithmetic::pair_of(words[j][p]);
                by[from + j][p] *= slope(pair.value[0]);
                by[from + j][2 + p] *= slope(pair.value[1]);
            }
        }
    }
};

// From the derivatives by a layer's sums, which are the rows, to those by the sums of the layer before, and so on.
template <int NET, int L, class Own> FN void go_back(Own& own, const UpdateCall& call, Index unit, u32 aside) {
    constexpr int   N = in_of(NET, L) / 8, FEW = N / int(sizeof(Stored));  // so many words find room beside the sums
    const auto&     activations = kept_tile<NET, L>(call, unit);
    Recalled<FEW>   some;
    float           c[N][4] = {};
    some.fetch(activations, 0);
    own.template multiply<outs_of(NET, L)>(c, aside);
    some.chain_with(c, 0);
    UNROLL
    for (int from = FEW; from < N; from += FEW) {
        asm volatile("" ::: "memory");
        some.fetch(activations, from);
        some.chain_with(c, from);
    }
    kept_tile<NET, LAYERS + L - 1>(call, unit).store_rows(c);
    group_barrier();  // all products with the rows are done
    if constexpr (L > 1) {
        own.store(c);
        publish();
        group_barrier();
        go_back<NET, L - 1>(own, call, unit, 0);
    }
}

template <int NET> struct WideLearner {
    static constexpr bool ACTOR = NET == 0, CRITIC = SHARED_TRUNK || NET == 1;
    static constexpr bool BOXES = ACTOR && !DISCRETE;
    static constexpr int  OUTS = outs_of(NET, LAYERS - 1);
    Judge<ACTOR, CRITIC>  judge;
    float                 by_log_std[LOG_STDS + !LOG_STDS] = {};

    FN explicit WideLearner(const UpdateCall& call) : judge(call) {}

    // A tile's samples are known a tile ahead, and their places two.
    Sample sample;
    int    after_next;

    FN int place_at(const UpdateCall& call, Index unit) const {
        return place_of(call, unit * GROUP_ROWS + thread_rank() % GROUP / WARP * WARP_ROWS + warp_lane() % WARP_ROWS);
    }
    // (What the dead saw may be no number: it must not meet even a zero.)
    FN int seen() const { return sample.alive ? sample.place : -1; }

    FN void begin(const UpdateCall& call, Index unit, Index next) {
        sample.place = place_at(call, unit);
        fetch_facts<ACTOR, CRITIC>(sample, call);
        after_next = place_at(call, next);
    }
    template <class Own>
    FN void learn(Own& own, const UpdateCall& call, const Scale& scale, Index unit, Index unit_after_next) {
        const Sample now = sample;
        own.template load_inputs<true>(call.observations, seen(), scale, &kept_tile<NET, 0>(call, unit), {nullptr, 0});
        sample.place = after_next;
        fetch_facts<ACTOR, CRITIC>(sample, call);
        after_next = place_at(call, unit_after_next);
        publish();
        group_barrier();
        go_forth<NET, 0>(own, Keeper<NET>{call, unit}, [&](float (&c)[OUTS / 8][4]) {
            take_back(own, call, now, unit, c);
        });
        publish();
        group_barrier();
        go_back<NET, LAYERS - 1>(own, call, unit, BOXES ? OUTPUTS_BYTES : 0);
    }

    // Makes derivatives of the outputs: the rows of the way back. (Those of a box lie behind the outputs.)
    template <class Own> FN void take_back(Own& own, const UpdateCall& call, const Sample& sample, Index unit, float (&c)[OUTS / 8][4]) {
        constexpr int value_at = ACTOR ? MEANS : 0;
        auto&         kept = kept_tile<NET, 2 * LAYERS - 1>(call, unit);
        if constexpr (!BOXES) {
            if (ACTOR) forbid(c, call.action_mask, sample.place);
            judge_choices(judge, sample, c, value_at);
            own.store(c);
            kept.store_rows(c);
        } else {
            if (CRITIC) own.store_values(c, value_at);
            own.store_means(c, own.outputs_of_warp(), call.flat);
            const int     of_warp = own.lane % WARP_ROWS, row = own.warp * WARP_ROWS + of_warp;
            float* const  outputs = own.outputs_of_warp() + of_warp * ROW_STRIDE;
            judge(sample, own.outputs_of_block(), own.values() + of_warp);
            warp_barrier();
            for (int j = own.lane / WARP_ROWS; j < OUTS; j += 2) {  // two threads a row
                const auto by = Arithmetic::stored(j < MEANS ? outputs[j] : CRITIC && j == MEANS ? own.values()[of_warp] : 0.0f);
                *reinterpret_cast<Stored*>(own.rows + OUTPUTS_BYTES + row_place(u32(row), u32(j))) = by;
                *kept.at(j, kept.row_slot(row)) = by;
            }
            if (own.lane < WARP_ROWS) {
                UNROLL
                for (int d = 0; d < LOG_STDS; ++d) by_log_std[d] += outputs[MEANS + d];
            }
        }
    }
};

template <int NET> FN void update(const UpdateCall& call, int worker, int workers) {
    auto&            memory = WideMemory::of_block();
    const Scale      scale  = {call.mean, call.inverse, call.limit};
    const Index      tiles  = (call.rows + GROUP_TILE - 1) / GROUP_TILE;
    const auto       weights = begin_network<NET, STEPS>(memory, call, scale, (tiles - worker + workers - 1) / workers);
    WideLearner<NET> learner(call);
    Rowwise<Weights<NET, STEPS>> own(memory, weights);
    const Index group = own.group, step = workers * GROUPS;
    learner.begin(call, worker * Index(GROUPS) + group, worker * Index(GROUPS) + group + step);
    for (Index tile = worker; tile < tiles; tile += workers) {
        learner.learn(own, call, scale, tile * GROUPS + group, tile * GROUPS + group + 2 * step);
    }
    float* const sums = call.sums + (SUMS + LOG_STDS) * block_number();
    learner.judge.write(sums, reinterpret_cast<float (&)[WARPS][SUMS]>(memory.sums), [] { block_barrier(); });
    block_barrier();
    UNROLL
    for (int d = 0; d < LOG_STDS; ++d) {
        const float sum = summed_over_warp(learner.by_log_std[d]);
        if (own.lane == 0) memory.sums[thread_rank() / WARP][d] = sum;
    }
    block_barrier();
    const int d = thread_rank();
    if (NET == 0 && d < LOG_STDS) {
        float sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += memory.sums[w][d];
        sums[SUMS + d] = sum;
    }
}

KERNEL_OF_BLOCKS(kernel_update, UpdateCall, THREADS, 1) {
    const int actors = call.actors, block = block_number();
    if (block < actors) update<0>(call, block, actors);
    else if constexpr (NETS > 1) update<1>(call, block - actors, block_count() - actors);
}
