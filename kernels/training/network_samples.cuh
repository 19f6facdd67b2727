// What updates have in common: samples on their way to a block, and what the loss says of them.

constexpr int SUMS = 6;

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

// (What the dead saw may be no number: it must not meet even a zero.)
FN void silence(Sample& sample, int lane) {
    const int there = sample.alive != 0;
    if (!from_lane(there, lane / 4)) {
        UNROLL
        for (int j = 0; j < INPUTS / 8; ++j) sample.x[j][0] = sample.x[j][1] = 0;
    }
    if (!from_lane(there, lane / 4 + 8)) {
        UNROLL
        for (int j = 0; j < INPUTS / 8; ++j) sample.x[j][2] = sample.x[j][3] = 0;
    }
}

// The loss of a thread's samples, one at a time, and its sums.
template <bool ACTOR, int OUTPUTS> struct Judge {
    const UpdateCall& call;
    float             sums[SUMS] = {}, scalars[4];

    FN explicit Judge(const UpdateCall& call_) : call(call_) {
        UNROLL
        for (int j = 0; j < 4; ++j) scalars[j] = call.scalars[j];
    }

    // Leaves the loss's gradient where the outputs were: those of the warp's rows lie one for each of its first threads.
    FN void operator()(const Sample& sample, float* outputs) {
        const int lane = warp_lane();
        LossCall  one;
        one.scalars      = scalars;
        one.clipped      = call.clipped;
        one.clips_values = call.clips_values;
        one.value_clip   = call.value_clip;
        one.value_weight = call.value_weight;
        one.returns      = &sample.target;
        one.old_values   = &sample.old_value;
        const bool alive = sample.alive != 0;
        if constexpr (ACTOR) {
            const OneRow env = {0, lane < WARP_ROWS};
            const Rows   rows(outputs_at(outputs), nullptr, nullptr, env);
            float        none = 0, d_none, found[SUMS] = {};
            one.rows         = 1;
            one.clips_values = 0;
            one.returns = one.values = one.old_values = &none;
            one.actions    = sample.action;
            one.log_probs  = &sample.log_prob;
            one.advantages = &sample.advantage;
            one.d_values   = &d_none;
            one.sums       = found;
            Samples samples;
            samples.place[0]    = 0;
            samples.alive[0]    = alive;
            if (lane < WARP_ROWS) {
                if constexpr (DISCRETE) discrete_loss(samples, one, rows, env);
                else gaussian_loss(samples, one, rows, env);
                UNROLL
                for (int s = 0; s < SUMS; ++s) sums[s] += found[s];
            }
        } else if (lane < WARP_ROWS) {
            float* const value = outputs + thread_rank() * ROW_STRIDE;
            const Loss   loss  = value_loss(one, 0, *value);
            *value             = alive ? call.value_weight * loss.gradient : 0.0f;
            sums[VALUE_LOSS] += alive ? loss.value : 0.0f;
        }
    }

    // Writes the block's sums. The whole block calls it.
    FN void write(float* totals, float (&of_warps)[WARPS][SUMS]) const {
        UNROLL
        for (int s = 0; s < SUMS; ++s) {
            const float sum = summed_over_warp(sums[s]);
            if (warp_lane() == 0) of_warps[thread_rank() / WARP][s] = sum;
        }
        block_barrier();
        const int s = thread_rank();
        if (s < SUMS && (s != VALUE_LOSS) == ACTOR) {
            float sum = 0;
            UNROLL
            for (int w = 0; w < WARPS; ++w) sum += of_warps[w][s];
            totals[s] = sum;
        }
    }
};

// Times the slopes of the activations.
template <int N> FN void chain(float (&by)[N][4], const float (&values)[N][4]) {
    UNROLL
    for (int j = 0; j < N; ++j) {
        UNROLL
        for (int q = 0; q < 4; ++q) by[j][q] *= slope(values[j][q]);
    }
}

// A warp's part of its rows of the outputs' gradients.
template <int OUTPUTS, int N> FN void fetch_outputs(float (&by_out)[N][4], const float* outputs, int lane) {
    UNROLL
    for (int j = 0; j < N; ++j) {
        UNROLL
        for (int q = 0; q < 4; ++q) {
            const int column = 8 * j + lane % 4 * 2 + q % 2;
            by_out[j][q]     = column < OUTPUTS ? outputs[(lane / 4 + q / 2 * 8) * ROW_STRIDE + column] : 0.0f;
        }
    }
}
