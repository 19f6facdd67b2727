// What the choices of an action's elements are worth, [rows, PARAMETERS]; an action is worth the mean over its elements.
//
// Generated before it, of an action: WIDTH (elements), PARAMETERS (choices of all), size_of(d), offset_of(d), start_of(d);
// VALUE_LOSS and ALIVE of SUM_COUNT sums.

constexpr float LEAST = 1e-30f;  // the probability of what is not chosen at random: its logarithm is a number

struct Best { int choice, possible; };

// Of an element's possible choices the one that is worth most, of equals the first; where nothing is possible, of all.
FN Best best_of(const float* values, const u8* mask, int d) {
    Best best = {offset_of(d), 0};
    for (int j = offset_of(d); j < offset_of(d) + size_of(d); ++j) {
        if (mask != nullptr && mask[j] == 0) continue;
        if (best.possible == 0 || values[best.choice] < values[j]) best.choice = j;
        ++best.possible;
    }
    for (int j = offset_of(d); best.possible == 0 && j < offset_of(d) + size_of(d); ++j) {
        if (values[best.choice] < values[j]) best.choice = j;
    }
    return best;
}

template <class Call> FN const u8* mask_of_row(const Call& call, Index row) {
    return call.action_mask == nullptr ? nullptr : call.action_mask + row * PARAMETERS;
}

KERNEL(kernel_best, BestCall) {
    FOR_EACH_ENV(env, call.rows) {
        FOR_EACH_LANE_ALONE(k, env) {
            const Index        row    = env.index(k);
            const float* const values = call.values + row * PARAMETERS;
            float              sum    = 0;
            for (int d = 0; d < WIDTH; ++d) sum += values[best_of(values, mask_of_row(call, row), d).choice];
            call.best[row] = sum / float(WIDTH);
        }
    }
}

// The logarithms of choices' probabilities, where an element is the best choice or, with a probability, any possible one;
// what a mask forbids may have any.
KERNEL(kernel_prefer, PreferCall) {
    FOR_EACH_ENV(env, call.rows) {
        FOR_EACH_LANE_ALONE(k, env) {
            const Index        row    = env.index(k);
            const float* const values = call.values + row * PARAMETERS;
            const float        epsilon = *call.epsilon;
            for (int d = 0; d < WIDTH; ++d) {
                const Best  best  = best_of(values, mask_of_row(call, row), d);
                const float share = epsilon / float(maximum(best.possible, 1)), other = log(maximum(share, LEAST));
                float* const logits = call.logits + row * PARAMETERS;
                for (int j = offset_of(d); j < offset_of(d) + size_of(d); ++j) logits[j] = other;
                logits[best.choice] = log(maximum(share + (1.0f - epsilon), LEAST));
            }
        }
    }
}

// Half the square of how far what was chosen is from what it should be worth; its derivatives, and each sample's sums.
KERNEL(kernel_judge, JudgeChoicesCall) {
    FOR_EACH_ENV(env, call.rows) {
        FOR_EACH_LANE_ALONE(k, env) {
            const Index        row    = env.index(k), place = call.indices == nullptr ? row : Index(call.indices[row]);
            const bool         alive  = call.alive == nullptr || call.alive[place] != 0;
            const float* const values = call.values + row * PARAMETERS;
            float* const       by     = call.by_values + row * PARAMETERS;
            int                chosen[WIDTH];
            float              sum = 0;
            for (int j = 0; j < PARAMETERS; ++j) by[j] = 0;
            for (int d = 0; d < WIDTH; ++d) {
                // An action outside is nobody's: the nearest, so that nothing outside of the row is read.
                chosen[d] = offset_of(d) + clip(int(call.actions[place * WIDTH + d]) - start_of(d), 0, size_of(d) - 1);
                sum += values[chosen[d]];
            }
            const float off = alive ? sum / float(WIDTH) - call.returns[place] : 0.0f;
            for (int d = 0; d < WIDTH; ++d) by[chosen[d]] = off / float(WIDTH);
            for (int s = 0; s < SUM_COUNT; ++s) call.sums[s * call.rows + row] = 0;
            call.sums[VALUE_LOSS * call.rows + row] = 0.5f * off * off;
            call.sums[ALIVE * call.rows + row]      = alive ? 1.0f : 0.0f;
        }
    }
}
