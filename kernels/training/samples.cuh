// What updates of networks of all shapes have in common: what is known of samples, and what the loss says of them.

constexpr int SUMS = 6;

struct Sample {
    int     place;  // -1: there is none
    int     alive;
    float   log_prob, advantage, target, old_value;
    Element action[WIDTH];
};

FN int place_of(const UpdateCall& call, Index number) {
    if (number >= call.rows) return -1;
    return call.indices == nullptr ? int(number) : call.indices[number];
}

template <bool ACTOR, bool CRITIC> FN void fetch_facts(Sample& sample, const UpdateCall& call) {
    const int place = sample.place;
    sample.alive    = 0;
    if (place < 0) return;
    sample.alive = call.alive == nullptr ? 1 : call.alive[place];
    if (ACTOR) {
        sample.log_prob  = call.log_probs[place];
        sample.advantage = call.advantages[place];
        UNROLL
        for (int d = 0; d < WIDTH; ++d) sample.action[d] = call.actions[Index(place) * WIDTH + d];
    }
    if (CRITIC) {
        sample.target    = call.returns[place];
        sample.old_value = call.clips_values ? call.old_values[place] : 0.0f;
    }
}

// The loss of a thread's samples, one at a time, and its sums.
template <bool ACTOR, bool CRITIC> struct Judge {
    const UpdateCall& call;
    float             sums[SUMS] = {}, scalars[4];

    FN explicit Judge(const UpdateCall& call_) : call(call_) {
        UNROLL
        for (int j = 0; j < 4; ++j) scalars[j] = call.scalars[j];
    }

    // Leaves the loss's gradient where the outputs were: those of the warp's rows lie one for each of its first threads.
    FN void operator()(const Sample& sample, float* outputs, float* value) {
        const int lane = warp_lane();
        LossCall  one;
        one.scalars      = scalars;
        one.clipped      = call.clipped;
        one.value_clip   = call.value_clip;
        one.value_weight = call.value_weight;
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
            if (env.wanted) {
                if constexpr (DISCRETE) discrete_loss(samples, one, rows, env);
                else gaussian_loss(samples, one, rows, env);
                UNROLL
                for (int s = 0; s < SUMS; ++s) sums[s] += s == VALUE_LOSS ? 0.0f : found[s];
            }
        }
        if (CRITIC && lane < WARP_ROWS) {
            one.clips_values = call.clips_values;
            one.returns      = &sample.target;
            one.old_values   = &sample.old_value;
            const Loss loss  = value_loss(one, 0, *value);
            *value           = alive ? call.value_weight * loss.gradient : 0.0f;
            sums[VALUE_LOSS] += alive ? loss.value : 0.0f;
        }
    }

    // Writes the sums over WORKERS warps, all of whose threads call it; `wait` lets them wait for one another.
    template <int WORKERS, class Wait>
    FN void write(float* totals, float (&of_warps)[WORKERS][SUMS], const Wait& wait) const {
        UNROLL
        for (int s = 0; s < SUMS; ++s) {
            const float sum = summed_over_warp(sums[s]);
            if (warp_lane() == 0) of_warps[thread_rank() / WARP][s] = sum;
        }
        wait();
        const int s = thread_rank();
        if (s < SUMS && (s == VALUE_LOSS ? CRITIC : ACTOR)) {
            float sum = 0;
            UNROLL
            for (int w = 0; w < WORKERS; ++w) sum += of_warps[w][s];
            totals[s] = sum;
        }
    }
};
