// The forward and backward pass of a minibatch's loss for wide perceptrons, in one launch; gradient.cuh computes the
// gradients of the weights from the tiles that it saves.

// Adds the losses of a warp's rows, and overwrites logits, and the value in column `value_at`, with their gradients.
// `thread_sample` is the sample of this thread's row, in the warp's first 16 threads.
template <bool ACTOR, bool CRITIC, class Losses, int N>
FN void choice_loss(Losses& losses, const Sample& thread_sample, float (&c)[N][4], int value_at) {
    const int lane = warp_lane();
    Sample    sample[2];
    LossSamples samples[2];
    LossCall  arguments[2];
    float     total[2] = {}, entropies[2] = {}, value[2] = {};
    float     max_logit[WIDTH][2], log_sum[WIDTH][2], entropy[WIDTH][2];
    int       taken[WIDTH][2];
    FOR_BOTH_ROWS(h) {
        const int from = lane / 4 + 8 * h;
        Sample&   s    = sample[h];
        s.alive        = shuffle(thread_sample.alive, from);
        if (ACTOR) s.log_prob = shuffle(thread_sample.log_prob, from);
        if (ACTOR) s.advantage = shuffle(thread_sample.advantage, from);
        if (CRITIC) s.target = shuffle(thread_sample.target, from);
        if (CRITIC) s.old_value = shuffle(thread_sample.old_value, from);
        UNROLL
        for (int d = 0; ACTOR && d < WIDTH; ++d) {
            const int action = shuffle(int(thread_sample.action[d]), from);
            taken[d][h]      = offset_of(d) + clip(action - start_of(d), 0, size_of(d) - 1);
        }
        samples[h].alive[0]      = s.alive;
        arguments[h]             = losses.shared_arguments();
        arguments[h].log_probs   = &s.log_prob;
        arguments[h].advantages  = &s.advantage;
        arguments[h].returns     = &s.target;
        arguments[h].old_values  = &s.old_value;
    }
    UNROLL
    for (int d = 0; ACTOR && d < WIDTH; ++d) {
        float sum[2] = {}, weighted[2] = {}, logit[2];
        max_of_columns(max_logit[d], c, d);
        for_columns<N>(d, [&](int j, int p, int, bool in) {
            FOR_BOTH_ROWS(h) {
                const float below = c[j][2 * h + p] - max_logit[d][h], weight = in ? exponential(below) : 0.0f;
                sum[h] += weight;
                weighted[h] += weight > 0 ? weight * below : 0.0f;
            }
        });
        select_column(logit, c, d, taken[d]);
        FOR_BOTH_ROWS(h) {
            sum[h]        = row_sum(sum[h]);
            log_sum[d][h] = logarithm(sum[h]);
            entropy[d][h] = log_sum[d][h] - quotient_of(row_sum(weighted[h]), sum[h]);
            total[h] += (logit[h] - max_logit[d][h]) - log_sum[d][h];
            entropies[h] += entropy[d][h];
        }
    }
    UNROLL
    for (int j = 0; CRITIC && j < N; ++j) {
        UNROLL
        for (int q = 0; q < 4; ++q) value[q / 2] += 8 * j + lane % 4 * 2 + q % 2 == value_at ? c[j][q] : 0.0f;
    }
    FOR_BOTH_ROWS(h) {
        const bool alive = sample[h].alive != 0, counts = alive && lane % 4 == 0;
        if (ACTOR) {
            const PolicyLoss policy     = policy_loss(arguments[h], 0, total[h]);
            samples[h].grad_log_prob[0] = policy.grad_log_prob;
            losses.sums[POLICY_LOSS] += counts ? policy.value : 0.0f;
            losses.sums[ENTROPY] += counts ? entropies[h] : 0.0f;
            losses.sums[DIVERGENCE] += counts ? policy.divergence : 0.0f;
            losses.sums[CLIPPED] += counts ? policy.clipped : 0.0f;
            losses.sums[ALIVE] += counts ? 1.0f : 0.0f;
        }
        if (CRITIC) {
            const Loss loss = value_loss(arguments[h], 0, row_sum(value[h]));
            losses.sums[VALUE_LOSS] += counts ? loss.value : 0.0f;
            value[h] = alive ? losses.call.value_weight * loss.gradient : 0.0f;
        }
    }
    FOR_EACH_NUMBER(j, q, N) {
        const int column = 8 * j + lane % 4 * 2 + q % 2, h = q / 2;
        float     grad   = 0;
        UNROLL
        for (int d = 0; ACTOR && d < WIDTH; ++d) {
            const bool in = offset_of(d) <= column && column < offset_of(d) + size_of(d);
            if (8 * j + 8 <= offset_of(d) || offset_of(d) + size_of(d) <= 8 * j) continue;
            const float log_p          = (c[j][q] - max_logit[d][h]) - log_sum[d][h];
            const bool  is_taken       = column == taken[d][h] && samples[h].alive[0];
            const float taken_gradient = is_taken ? samples[h].grad_log_prob[0] : 0.0f;
            const float sum = logit_gradient(samples[h], arguments[h], log_p, entropy[d][h], 0) + taken_gradient;
            grad            = in && c[j][q] != FORBIDDEN ? sum : grad;
        }
        c[j][q] = CRITIC && column == value_at ? value[h] : grad;
    }
}

template <class Net, class Call, bool = Net::FUNCTIONS> struct LossOfRows;

// The loss of policies and values.
template <class Net, class Call> struct LossOfRows<Net, Call, false> {
    static constexpr bool ACTOR = Net::HAS_POLICY, CRITIC = Net::HAS_VALUE;
    static constexpr int  OUTS = Net::padded_outs(Net::LAST), LOG_STDS = Net::LOG_STDS, MEANS = Net::MEANS;
    SampleLoss<Call>      loss;
    Sample                sample;
    float                 grad_log_std[LOG_STDS + !LOG_STDS] = {};

    FN explicit LossOfRows(const Call& call) : loss(call) {}

    FN static int index_at(const Call& call, Index number) { return sample_index(call, number); }
    FN void       fetch(const Call& call, int index) {
        sample.index = index;
        fetch_sample(sample, call, ACTOR, CRITIC);
    }

    // Turns the outputs into their gradients, and stores them as the rows of the backward pass.
    template <class Runner, class Tile>
    FN void loss_backward(Runner& runner, const Call& call, const Sample& row_sample, Index, float (&c)[OUTS / 8][4],
                          Tile& saved) {
        if constexpr (!ACTOR || DISCRETE) {
            if (ACTOR) apply_mask(c, call.action_mask, row_sample.index);
            choice_loss<ACTOR, CRITIC>(loss, row_sample, c, Net::VALUE_COLUMN);
            round_once(c);
            runner.store(c);
            saved.store_rounded(c);
        } else {
            if (CRITIC) runner.store_values(c, Net::VALUE_COLUMN);
            store_means<Net>(runner, c, call.flat);
            const int    warp_row = runner.lane % WARP_ROWS, row = runner.warp * WARP_ROWS + warp_row;
            float* const outputs  = warp_outputs(runner) + warp_row * ROW_STRIDE;
            loss.policy(row_sample, block_outputs(runner));
            if (CRITIC) loss.value(row_sample, runner.values() + warp_row);
            warp_barrier();
            for (int j = runner.lane / WARP_ROWS; j < OUTS; j += 2) {  // two threads per row
                const auto grad = Arithmetic::stored(j < MEANS             ? outputs[j]
                                                     : CRITIC && j == MEANS ? runner.values()[warp_row]
                                                                            : 0.0f);
                *reinterpret_cast<Stored*>(runner.rows + GRAD_OFFSET<Net> + row_offset(u32(row), u32(j))) = grad;
                *saved.at(j, saved.row_slot(row)) = grad;
            }
            if (runner.lane < WARP_ROWS) {
                UNROLL
                for (int d = 0; d < LOG_STDS; ++d) grad_log_std[d] += outputs[MEANS + d];
            }
        }
    }

    template <class Runner> FN void write(const Runner& runner, float* sums) {
        auto& warp_sums = reinterpret_cast<float (&)[WARPS][SUMS]>(runner.vectors.sums);
        loss.write(sums, warp_sums, ACTOR, CRITIC, [] { block_barrier(); });
        block_barrier();
        UNROLL
        for (int d = 0; d < LOG_STDS; ++d) {
            const float sum = warp_sum(grad_log_std[d]);
            if (runner.lane == 0) runner.vectors.sums[thread_rank() / WARP][d] = sum;
        }
        block_barrier();
        const int d = thread_rank();
        if (Net::NUMBER == 0 && d < LOG_STDS) {
            float sum = 0;
            for (int w = 0; w < WARPS; ++w) sum += runner.vectors.sums[w][d];
            sums[SUMS + d] = sum;
        }
    }
};

// A loss of functions' outputs that is quadratic in each output: its gradient is grad_outputs + curvatures * output.
// Writes the outputs, if an array is given for them.
struct FunctionRow { int index, alive; };

template <class Net, class Call> struct LossOfRows<Net, Call, true> {
    static constexpr int OUTS  = Net::padded_outs(Net::LAYERS - 1);
    FunctionRow          sample;

    FN explicit LossOfRows(const Call&) {}
    FN static int index_at(const Call& call, Index number) { return number < call.rows ? int(number) : -1; }
    FN void       fetch(const Call&, int index) { sample = {index, index >= 0}; }

    template <class Runner, class Tile>
    FN void loss_backward(Runner& runner, const Call& call, const FunctionRow&, Index unit, float (&c)[OUTS / 8][4],
                          Tile& saved) {
        constexpr int COLUMNS = Net::out_of(Net::LAYERS - 1);
        for_accumulators<Net, OUTS / 8, COLUMNS>(runner, call.rows, unit, [&](int j, int q, Index index) {
            const float output = c[j][q];
            c[j][q]            = 0;
            if (index < 0) return;
            if (call.outputs != nullptr) call.outputs[index] = output;
            c[j][q] = call.grad_outputs[index];
            if (call.curvatures != nullptr) c[j][q] = fma(call.curvatures[index], output, c[j][q]);
        });
        round_once(c);
        runner.store(c);
        if (saves_for_gradient<Net>(call)) saved.store_rounded(c);
    }
    template <class Runner> FN void write(const Runner&, float*) {}
};

// Runs tiles of samples; prefetches samples one tile ahead, their indices two tiles ahead.
template <class Net, class Call> struct WideLearner {
    LossOfRows<Net, Call> loss;
    int                   after_next;

    FN explicit WideLearner(const Call& call) : loss(call) {}

    FN int index_at(const Call& call, Index unit) const {
        const int row = thread_rank() % GROUP / WARP * WARP_ROWS + warp_lane() % WARP_ROWS;
        return loss.index_at(call, unit * GROUP_ROWS + row);
    }
    FN void start(const Call& call, Index unit, Index next) {
        loss.fetch(call, index_at(call, unit));
        after_next = index_at(call, next);
    }
    template <class Runner>
    FN void run_tile(Runner& runner, const Call& call, const Scale& scale, Index unit, Index unit_after_next) {
        const auto now = loss.sample;
        const int  index    = now.alive ? now.index : -1;  // an inactive agent's NaN times zero would be NaN
        const auto prefetch = [&] {
            loss.fetch(call, after_next);
            after_next = index_at(call, unit_after_next);
        };
        using OutputTile = SavedTile<Net, 2 * Net::LAYERS - 1>;
        train_tile(runner, call, scale, unit, index, prefetch, [&](Outputs<Net>& c, OutputTile& saved) {
            loss.loss_backward(runner, call, now, unit, c, saved);
        });
    }
};

// Runs a worker's tiles through one net, forward, loss and backward; writes the block's sums.
template <class Net, class Call> FN void update_net(const Call& call, int worker, int workers) {
    using Sizes        = Layout<typename Net::Shape>;
    const Scale scale  = {call.mean, call.inverse, call.limit};
    const Index tiles  = (call.rows + GROUP_TILE - 1) / GROUP_TILE;
    auto        runner = start_rows<Net>(call, scale, tiles_of_worker(worker, workers, tiles));
    WideLearner<Net, Call> learner(call);
    const Index group = runner.group, step = workers * GROUPS;
    for (int j = runner.lane; j < 2 * Net::NORM_COLUMNS; j += WARP) norm_sums<Net>(call)[j] = 0;
    warp_barrier();
    learner.start(call, worker * Index(GROUPS) + group, worker * Index(GROUPS) + group + step);
    for (Index tile = worker; tile < tiles; tile += workers) {
        learner.run_tile(runner, call, scale, tile * GROUPS + group, tile * GROUPS + group + 2 * step);
    }
    float* const sums = call.sums + Sizes::BLOCK_SUMS * block_number();
    learner.loss.write(runner, sums);
    block_barrier();
    for (int j = thread_rank(); j < 2 * Net::NORM_COLUMNS; j += THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += norm_sums<Net>(call, w)[j];
        sums[Net::LOSSES + Net::LOG_STDS + j] = sum;
    }
}

// Runs an update: the first `actors` blocks run net 0, the rest net 1, if there are two.
template <class Shape, class Call> FN void update(const Call& call) {
    const int actors = call.actors, block = block_number();
    if (block < actors) update_net<NetOf<Shape, 0>>(call, block, actors);
    else if constexpr (Shape::NETS > 1) update_net<NetOf<Shape, 1>>(call, block - actors, block_count() - actors);
}
