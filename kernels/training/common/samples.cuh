// What updates of networks of all shapes have in common: what is known of samples, and what the loss says of them.

struct Sample {
    int     place;  // -1: there is none
    int     alive;
    float   log_prob, advantage, target, old_value;
    Element action[WIDTH];
};

template <class Call> FN int place_of(const Call& call, Index number) {
    if (number >= call.rows) return -1;
    return call.indices == nullptr ? int(number) : call.indices[number];
}

template <class Call> FN void fetch_facts(Sample& sample, const Call& call, bool policy, bool value) {
    const int place = sample.place;
    sample.alive    = 0;
    if (place < 0) return;
    sample.alive = call.alive == nullptr ? 1 : call.alive[place];
    if (policy) {
        sample.log_prob  = call.log_probs[place];
        sample.advantage = call.advantages[place];
        UNROLL
        for (int d = 0; d < WIDTH; ++d) sample.action[d] = call.actions[Index(place) * WIDTH + d];
    }
    if (value) {
        sample.target    = call.returns[place];
        sample.old_value = call.clips_values ? call.old_values[place] : 0.0f;
    }
}

// The loss of a thread's samples, one at a time, and its sums. Rows of a warp lie one for each of its first threads.
template <class Call> struct Judge {
    const Call& call;
    float       sums[SUMS] = {}, scalars[4];

    FN explicit Judge(const Call& call_) : call(call_) {
        UNROLL
        for (int j = 0; j < 4; ++j) scalars[j] = call.scalars[j];
    }

    // What is known of all samples.
    FN LossCall common() const {
        LossCall one;
        one.scalars      = scalars;
        one.clipped      = call.clipped;
        one.clips_values = call.clips_values;
        one.value_clip   = call.value_clip;
        one.value_weight = call.value_weight;
        return one;
    }

    // Leaves the loss's gradient where the outputs were. By a whole warp: its threads meet.
    FN void policy(const Sample& sample, float* outputs) {
        const OneRow env = {0, warp_lane() < WARP_ROWS};
        const Rows   rows(outputs_at(outputs), nullptr, nullptr, env);
        float        none = 0, d_none, found[SUMS] = {};
        LossCall     one = common();
        one.rows         = 1;
        one.clips_values = 0;
        one.returns = one.values = one.old_values = &none;
        one.actions    = sample.action;
        one.log_probs  = &sample.log_prob;
        one.advantages = &sample.advantage;
        one.d_values   = &d_none;
        one.sums       = found;
        Samples samples;
        samples.place[0] = 0;
        samples.alive[0] = sample.alive != 0;
        if (!env.wanted) return;
        if constexpr (DISCRETE) discrete_loss(samples, one, rows, env);
        else gaussian_loss(samples, one, rows, env);
        UNROLL
        for (int s = 0; s < SUMS; ++s) sums[s] += s == VALUE_LOSS ? 0.0f : found[s];
    }

    // The same of a thread's own value; no threads meet.
    FN void value(const Sample& sample, float* value) {
        if (warp_lane() >= WARP_ROWS) return;
        LossCall one    = common();
        one.returns     = &sample.target;
        one.old_values  = &sample.old_value;
        const Loss loss = value_loss(one, 0, *value);
        *value          = sample.alive ? call.value_weight * loss.gradient : 0.0f;
        sums[VALUE_LOSS] += sample.alive ? loss.value : 0.0f;
    }

    // Writes the sums over WORKERS warps, all of whose threads call it; `wait` lets them wait for one another.
    template <int WORKERS, class Wait>
    FN void write(float* totals, float (&of_warps)[WORKERS][SUMS], bool policy, bool value, const Wait& wait) const {
        UNROLL
        for (int s = 0; s < SUMS; ++s) {
            const float sum = summed_over_warp(sums[s]);
            if (warp_lane() == 0) of_warps[thread_rank() / WARP][s] = sum;
        }
        wait();
        const int s = thread_rank();
        if (s < SUMS && (s == VALUE_LOSS ? value : policy)) {
            float sum = 0;
            UNROLL
            for (int w = 0; w < WORKERS; ++w) sum += of_warps[w][s];
            totals[s] = sum;
        }
    }
};
