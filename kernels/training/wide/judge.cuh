// The loss of choices whose logits are accumulators.

// Makes logits, and the value in column `value_at`, the loss's derivatives by them. Samples are those of the rows of the
// warp's first 16 threads.
template <bool ACTOR, bool CRITIC, int N>
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
    UNROLL
    for (int j = 0; j < N; ++j) {
        UNROLL
        for (int q = 0; q < 4; ++q) {
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
}
