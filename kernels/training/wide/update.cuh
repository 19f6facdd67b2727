// The derivatives of a minibatch's loss by the sums of all layers of wide perceptrons, in one launch.

// --- the loss of choices whose logits are accumulators ---

// Makes logits, and the value in column `value_at`, the loss's derivatives by them. Samples are those of the rows of the
// warp's first 16 threads.
template <bool ACTOR, bool CRITIC, class Judge, int N>
FN void judge_choices(Judge& judge, const Sample& own, float (&c)[N][4], int value_at) {
    const int lane = warp_lane();
    Sample    sample[2];
    Samples   samples[2];
    LossCall  one[2];
    float     total[2] = {}, entropies[2] = {}, most[WIDTH][2], log_sum[WIDTH][2], entropy[WIDTH][2], value[2] = {};
    int       taken[WIDTH][2];
    UNROLL
    for (int h = 0; h < 2; ++h) {
        const int from = lane / 4 + 8 * h;
        Sample&   s    = sample[h];
        s.alive        = from_lane(own.alive, from);
        if (ACTOR) s.log_prob = from_lane(own.log_prob, from);
        if (ACTOR) s.advantage = from_lane(own.advantage, from);
        if (CRITIC) s.target = from_lane(own.target, from);
        if (CRITIC) s.old_value = from_lane(own.old_value, from);
        UNROLL
        for (int d = 0; ACTOR && d < WIDTH; ++d) {
            const int action = from_lane(int(own.action[d]), from);
            taken[d][h]      = offset_of(d) + clip(action - start_of(d), 0, size_of(d) - 1);
        }
        samples[h].alive[0]  = s.alive;
        one[h]               = judge.common();
        one[h].log_probs     = &s.log_prob;
        one[h].advantages    = &s.advantage;
        one[h].returns       = &s.target;
        one[h].old_values    = &s.old_value;
    }
    UNROLL
    for (int d = 0; ACTOR && d < WIDTH; ++d) {
        float sum[2] = {}, weighted[2] = {}, logit[2];
        most_of(most[d], c, d);
        for_columns<N>(d, [&](int j, int p, int, bool in) {
            UNROLL
            for (int h = 0; h < 2; ++h) {
                const float below = c[j][2 * h + p] - most[d][h], share = in ? exponential(below) : 0.0f;
                sum[h] += share;
                weighted[h] += share > 0 ? share * below : 0.0f;
            }
        });
        number_at(logit, c, d, taken[d]);
        UNROLL
        for (int h = 0; h < 2; ++h) {
            sum[h]        = over_row_sum(sum[h]);
            log_sum[d][h] = logarithm(sum[h]);
            entropy[d][h] = log_sum[d][h] - quotient_of(over_row_sum(weighted[h]), sum[h]);
            total[h] += (logit[h] - most[d][h]) - log_sum[d][h];
            entropies[h] += entropy[d][h];
        }
    }
    UNROLL
    for (int j = 0; CRITIC && j < N; ++j) {
        UNROLL
        for (int q = 0; q < 4; ++q) value[q / 2] += 8 * j + lane % 4 * 2 + q % 2 == value_at ? c[j][q] : 0.0f;
    }
    UNROLL
    for (int h = 0; h < 2; ++h) {
        const bool alive = sample[h].alive != 0, counts = alive && lane % 4 == 0;
        if (ACTOR) {
            const PolicyLoss policy   = policy_loss(one[h], 0, total[h]);
            samples[h].by_log_prob[0] = policy.by_log_prob;
            judge.sums[POLICY_LOSS] += counts ? policy.value : 0.0f;
            judge.sums[ENTROPY] += counts ? entropies[h] : 0.0f;
            judge.sums[DIVERGENCE] += counts ? policy.divergence : 0.0f;
            judge.sums[CLIPPED] += counts ? policy.clipped : 0.0f;
            judge.sums[ALIVE] += counts ? 1.0f : 0.0f;
        }
        if (CRITIC) {
            const Loss loss = value_loss(one[h], 0, over_row_sum(value[h]));
            judge.sums[VALUE_LOSS] += counts ? loss.value : 0.0f;
            value[h] = alive ? judge.call.value_weight * loss.gradient : 0.0f;
        }
    }
    FOR_EACH_NUMBER(j, q, N) {
        const int column = 8 * j + lane % 4 * 2 + q % 2, h = q / 2;
        float     by     = 0;
        UNROLL
        for (int d = 0; ACTOR && d < WIDTH; ++d) {
            const bool in = offset_of(d) <= column && column < offset_of(d) + size_of(d);
            if (8 * j + 8 <= offset_of(d) || offset_of(d) + size_of(d) <= 8 * j) continue;
            const float log_p = (c[j][q] - most[d][h]) - log_sum[d][h];
            const float more  = column == taken[d][h] && samples[h].alive[0] ? samples[h].by_log_prob[0] : 0.0f;
            const float sum   = by_logit(samples[h], one[h], log_p, entropy[d][h], 0) + more;
            by                = in && c[j][q] != FORBIDDEN ? sum : by;
        }
        c[j][q] = CRITIC && column == value_at ? value[h] : by;
    }
}

// --- what the way back begins with ---

template <class Net, class Call, bool = Net::FUNCTIONS> struct LossOfRows;

// The loss of policies and values.
template <class Net, class Call> struct LossOfRows<Net, Call, false> {
    static constexpr bool ACTOR = Net::HAS_POLICY, CRITIC = Net::HAS_VALUE;
    static constexpr int  OUTS = Net::outs_of(Net::LAST), LOG_STDS = Net::LOG_STDS, MEANS = Net::MEANS;
    Judge<Call>           judge;
    Sample                sample;
    float                 by_log_std[LOG_STDS + !LOG_STDS] = {};

    FN explicit LossOfRows(const Call& call) : judge(call) {}

    FN static int place_at(const Call& call, Index number) { return place_of(call, number); }
    FN void       fetch(const Call& call, int place) {
        sample.place = place;
        fetch_facts(sample, call, ACTOR, CRITIC);
    }

    // Makes derivatives of the outputs: the rows of the way back.
    template <class Own, class Tile>
    FN void take_back(Own& own, const Call& call, const Sample& of_row, Index, float (&c)[OUTS / 8][4], Tile& kept) {
        if constexpr (!ACTOR || DISCRETE) {
            if (ACTOR) forbid(c, call.action_mask, of_row.place);
            judge_choices<ACTOR, CRITIC>(judge, of_row, c, Net::VALUE_AT);
            round_once(c);
            own.store(c);
            kept.store_rounded(c);
        } else {
            if (CRITIC) own.store_values(c, Net::VALUE_AT);
            store_means<Net>(own, c, call.flat);
            const int    of_warp = own.lane % WARP_ROWS, row = own.warp * WARP_ROWS + of_warp;
            float* const outputs = outputs_of_warp(own) + of_warp * ROW_STRIDE;
            judge.policy(of_row, outputs_of_block(own));
            if (CRITIC) judge.value(of_row, own.values() + of_warp);
            warp_barrier();
            for (int j = own.lane / WARP_ROWS; j < OUTS; j += 2) {  // two threads a row
                const auto by = Arithmetic::stored(j < MEANS ? outputs[j] : CRITIC && j == MEANS ? own.values()[of_warp] : 0.0f);
                *reinterpret_cast<Stored*>(own.rows + ASIDE<Net> + row_place(u32(row), u32(j))) = by;
                *kept.at(j, kept.row_slot(row)) = by;
            }
            if (own.lane < WARP_ROWS) {
                UNROLL
                for (int d = 0; d < LOG_STDS; ++d) by_log_std[d] += outputs[MEANS + d];
            }
        }
    }

    template <class Own> FN void write(const Own& own, float* sums) {
        auto& of_warps = reinterpret_cast<float (&)[WARPS][SUMS]>(own.numbers.sums);
        judge.write(sums, of_warps, ACTOR, CRITIC, [] { block_barrier(); });
        block_barrier();
        UNROLL
        for (int d = 0; d < LOG_STDS; ++d) {
            const float sum = summed_over_warp(by_log_std[d]);
            if (own.lane == 0) own.numbers.sums[thread_rank() / WARP][d] = sum;
        }
        block_barrier();
        const int d = thread_rank();
        if (Net::NUMBER == 0 && d < LOG_STDS) {
            float sum = 0;
            for (int w = 0; w < WARPS; ++w) sum += own.numbers.sums[w][d];
            sums[SUMS + d] = sum;
        }
    }
};

// A loss of the outputs of functions whose derivatives by them are linear, each in its own output. The outputs are told
// where they are wanted.
struct FunctionRow { int place, alive; };

template <class Net, class Call> struct LossOfRows<Net, Call, true> {
    static constexpr int OUTS  = Net::outs_of(Net::LAYERS - 1);
    FunctionRow          sample;

    FN explicit LossOfRows(const Call&) {}
    FN static int place_at(const Call& call, Index number) { return number < call.rows ? int(number) : -1; }
    FN void       fetch(const Call&, int place) { sample = {place, place >= 0}; }

    template <class Own, class Tile>
    FN void take_back(Own& own, const Call& call, const FunctionRow&, Index unit, float (&c)[OUTS / 8][4], Tile& kept) {
        for_accumulators<Net, OUTS / 8, Net::out_of(Net::LAYERS - 1)>(own, call.rows, unit, [&](int j, int q, Index place) {
            const float output = c[j][q];
            c[j][q]            = 0;
            if (place < 0) return;
            if (call.outputs != nullptr) call.outputs[place] = output;
            c[j][q] = call.by_outputs[place];
            if (call.curvatures != nullptr) c[j][q] = fma(call.curvatures[place], output, c[j][q]);
        });
        round_once(c);
        own.store(c);
        if (keeps_of<Net>(call)) kept.store_rounded(c);
    }
    template <class Own> FN void write(const Own&, float*) {}
};

// --- the launch ---

// A tile's samples are known a tile ahead, and their places two.
template <class Net, class Call> struct WideLearner {
    LossOfRows<Net, Call> loss;
    int                   after_next;

    FN explicit WideLearner(const Call& call) : loss(call) {}

    FN int place_at(const Call& call, Index unit) const {
        const int row = thread_rank() % GROUP / WARP * WARP_ROWS + warp_lane() % WARP_ROWS;
        return loss.place_at(call, unit * GROUP_ROWS + row);
    }
    FN void begin(const Call& call, Index unit, Index next) {
        loss.fetch(call, place_at(call, unit));
        after_next = place_at(call, next);
    }
    template <class Own>
    FN void learn(Own& own, const Call& call, const Scale& scale, Index unit, Index unit_after_next) {
        const auto now = loss.sample;
        const int  seen = now.alive ? now.place : -1;  // (what the dead saw may be no number: it must not meet even a zero)
        const auto go_on = [&] {
            loss.fetch(call, after_next);
            after_next = place_at(call, unit_after_next);
        };
        learn_tile(own, call, scale, unit, seen, go_on, [&](Outputs<Net>& c, KeptTile<Net, 2 * Net::LAYERS - 1>& kept) {
            loss.take_back(own, call, now, unit, c, kept);
        });
    }
};

template <class Net, class Call> FN void update_net(const Call& call, int worker, int workers) {
    using Sizes       = Layout<typename Net::Shape>;
    const Scale scale = {call.mean, call.inverse, call.limit};
    const Index tiles = (call.rows + GROUP_TILE - 1) / GROUP_TILE;
    auto        own   = begin_rows<Net>(call, scale, turns_of(worker, workers, tiles));
    WideLearner<Net, Call> learner(call);
    const Index group = own.group, step = workers * GROUPS;
    for (int j = own.lane; j < 2 * Net::NORMED; j += WARP) norm_sums<Net>(call)[j] = 0;
    warp_barrier();
    learner.begin(call, worker * Index(GROUPS) + group, worker * Index(GROUPS) + group + step);
    for (Index tile = worker; tile < tiles; tile += workers) {
        learner.learn(own, call, scale, tile * GROUPS + group, tile * GROUPS + group + 2 * step);
    }
    float* const sums = call.sums + Sizes::SUMS_OF_BLOCK * block_number();
    learner.loss.write(own, sums);
    block_barrier();
    for (int j = thread_rank(); j < 2 * Net::NORMED; j += THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += call.norm_sums[(block_number() * Index(WARPS) + w) * (2 * Net::NORMED) + j];
        sums[Net::LOSSES + Net::LOG_STDS + j] = sum;
    }
}

template <class Shape, class Call> FN void update(const Call& call) {
    const int actors = call.actors, block = block_number();
    if (block < actors) update_net<NetOf<Shape, 0>>(call, block, actors);
    else if constexpr (Shape::NETS > 1) update_net<NetOf<Shape, 1>>(call, block - actors, block_count() - actors);
}
