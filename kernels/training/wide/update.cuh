// The derivatives of a minibatch's loss by the sums of all layers of wide perceptrons, in one launch.

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
        const int  seen = now.alive ? now.place : -1;  // (what the dead saw may be no number: it must not meet even a zero)
        const auto go_on = [&] {
            loss.fetch(call, after_next);
            after_next = place_at(call, unit_after_next);
        };
        learn_tile<NET>(own, call, scale, unit, seen, go_on, [&](Outputs<NET>& c, KeptTile<NET, 2 * LAYERS - 1>& kept) {
            loss.take_back(own, call, now, unit, c, kept);
        });
    }
};

template <int NET> FN void update(const UpdateCall& call, int worker, int workers) {
    const Scale       scale = {call.mean, call.inverse, call.limit};
    const Index       tiles = (call.rows + GROUP_TILE - 1) / GROUP_TILE;
    LearningRows<NET> own   = begin_rows<NET>(call, scale, turns_of(worker, workers, tiles));
    WideLearner<NET>  learner(call);
    const Index       group = own.group, step = workers * GROUPS;
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
