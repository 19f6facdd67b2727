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

// From the derivatives by a layer's sums, which are the rows, to those by the sums of the layer before, and so on.
template <int NET, int L> FN void go_back(Rowwise& own, const UpdateCall& call, Index unit, u32 aside) {
    constexpr int N = in_of(NET, L) / 8, AT_A_TIME = 8;
    float         c[N][4] = {};
    own.multiply<outs_of(NET, L)>(c, aside);
    UNROLL
    for (int first = 0; first < N; first += AT_A_TIME) {
        float y[AT_A_TIME][4];
        asm volatile("" ::: "memory");
        kept_tile<NET, L>(call, unit).load_rows(y, first);
        UNROLL
        for (int j = 0; j < AT_A_TIME; ++j) {
            UNROLL
            for (int q = 0; q < 4; ++q) c[first + j][q] *= slope(y[j][q]);
        }
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
    static constexpr int  OUTS = outs_of(NET, LAYERS - 1);
    Judge<ACTOR, CRITIC>  judge;
    float                 by_log_std[LOG_STDS + !LOG_STDS] = {};

    FN explicit WideLearner(const UpdateCall& call) : judge(call) {}

    FN void learn(Rowwise& own, const UpdateCall& call, const Scale& scale, Index unit) {
        Sample sample;
        sample.place = place_of(call, unit * GROUP_ROWS + own.warp * WARP_ROWS + own.lane % WARP_ROWS);
        fetch_facts<ACTOR, CRITIC>(sample, call);
        // (what the dead saw may be no number: it must not meet even a zero)
        own.load_inputs<true>(call.observations, sample.alive ? sample.place : -1, scale, &kept_tile<NET, 0>(call, unit));
        publish();
        group_barrier();
        go_forth<NET, 0>(own, Keeper<NET>{call, unit}, [&](const float (&c)[OUTS / 8][4]) {
            own.store_results<NET>(c, own.outputs_of_warp(), call.flat);
            take_back(own, call, sample, unit);
        });
        publish();
        group_barrier();
        go_back<NET, LAYERS - 1>(own, call, unit, OUTPUTS_BYTES);
    }

    // Makes derivatives of the outputs: the rows of the way back, which lie behind the outputs.
    FN void take_back(Rowwise& own, const UpdateCall& call, const Sample& sample, Index unit) {
        const int     sample_row = own.lane % WARP_ROWS, row = own.warp * WARP_ROWS + sample_row;
        float* const  outputs = own.outputs_of_warp() + sample_row * ROW_STRIDE;
        float* const  value   = own.values() + sample_row;
        const bool    masked  = sample.place >= 0 && call.action_mask != nullptr;
        const u8*     mask    = call.action_mask + Index(sample.place) * PARAMETERS;
        if (ACTOR) own.forbid(call.action_mask, sample.place, sample.place >= 0);
        judge(sample, own.outputs_of_block(), value);
        warp_barrier();
        auto& kept = kept_tile<NET, 2 * LAYERS - 1>(call, unit);
        _Pragma("unroll 2")
        for (int j = own.lane / WARP_ROWS; j < OUTS; j += 2) {  // two threads a row
            const bool at    = CRITIC && j == (ACTOR ? MEANS : 0);
            const bool there = ACTOR && j < MEANS && !(masked && mask[j] == 0);
            const auto by    = Arithmetic::stored(at ? *value : there ? outputs[j] : 0.0f);
            *reinterpret_cast<Stored*>(own.rows + OUTPUTS_BYTES + row_place(u32(row), u32(j))) = by;
            *kept.at(j, kept.row_slot(row)) = by;
        }
        if (own.lane >= WARP_ROWS) return;
        if (ACTOR) {
            UNROLL
            for (int d = 0; d < LOG_STDS; ++d) by_log_std[d] += outputs[MEANS + d];
        }
    }
};

template <int NET> FN void update(const UpdateCall& call, int worker, int workers) {
    auto&            memory = WideMemory::of_block();
    const Scale      scale  = {call.mean, call.inverse, call.limit};
    const Index      tiles  = (call.rows + GROUP_TILE - 1) / GROUP_TILE;
    load_facts<NET>(memory, call.flat, scale);
    if (fills_ring()) {
        give_registers();
        stream<NET, STEPS>(memory, call.packed, tiles, worker, workers);
    } else {
        take_registers();
        Rowwise          own(memory);
        WideLearner<NET> learner(call);
        for (Index tile = worker; tile < tiles; tile += workers) learner.learn(own, call, scale, tile * GROUPS + own.group);
        float* const sums = call.sums + (SUMS + LOG_STDS) * block_number();
        learner.judge.write(sums, reinterpret_cast<float (&)[WORKERS][SUMS]>(memory.sums), workers_barrier);
        workers_barrier();
        UNROLL
        for (int d = 0; d < LOG_STDS; ++d) {
            const float sum = summed_over_warp(learner.by_log_std[d]);
            if (warp_lane() == 0) memory.sums[thread_rank() / WARP][d] = sum;
        }
        workers_barrier();
        const int d = thread_rank();
        if (NET == 0 && d < LOG_STDS) {
            float sum = 0;
            for (int w = 0; w < WORKERS; ++w) sum += memory.sums[w][d];
            sums[SUMS + d] = sum;
        }
    }
}

KERNEL_OF_BLOCKS(kernel_update, UpdateCall, THREADS, 1) {
    const int actors = call.actors, block = block_number();
    if (block < actors) update<0>(call, block, actors);
    else if constexpr (NETS > 1) update<1>(call, block - actors, block_count() - actors);
}
