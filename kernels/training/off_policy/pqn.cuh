// PQN, one thread per row: greedy values, epsilon-greedy logits and the loss, from Q-values [rows, PARAMETERS], one per
// choice of each action element. An action's Q-value is the mean over its elements.
//
// Generated before it: WIDTH (an action's elements), PARAMETERS (choices of all elements), and for each element d
// size_of(d), offset_of(d), start_of(d); SUM_COUNT (sums of the loss), and the indices VALUE_LOSS and ALIVE among them.

constexpr float MIN_PROBABILITY = 1e-30f;  // keeps logarithms finite

struct Greedy { int choice, allowed; };

// The allowed choice of element d with the highest Q-value, the first of equals, and how many choices are allowed. If
// none is, the mask is ignored.
FN Greedy greedy_choice(const float* q_values, const u8* mask, int d) {
    Greedy greedy = {offset_of(d), 0};
    for (int j = offset_of(d); j < offset_of(d) + size_of(d); ++j) {
        if (mask != nullptr && mask[j] == 0) continue;
        if (greedy.allowed == 0 || q_values[greedy.choice] < q_values[j]) greedy.choice = j;
        ++greedy.allowed;
    }
    for (int j = offset_of(d); greedy.allowed == 0 && j < offset_of(d) + size_of(d); ++j) {
        if (q_values[greedy.choice] < q_values[j]) greedy.choice = j;
    }
    return greedy;
}

template <class Call> FN const u8* mask_of_row(const Call& call, Index row) {
    return call.action_mask == nullptr ? nullptr : call.action_mask + row * PARAMETERS;
}

// Writes each row's highest Q-value among allowed actions.
KERNEL(kernel_greedy_values, GreedyValuesCall) {
    FOR_EACH_ENV(env, call.rows) {
        FOR_EACH_LANE_ALONE(k, env) {
            const Index        row      = env.index(k);
            const float* const q_values = call.q_values + row * PARAMETERS;
            float              sum      = 0;
            for (int d = 0; d < WIDTH; ++d) sum += q_values[greedy_choice(q_values, mask_of_row(call, row), d).choice];
            call.values[row] = sum / float(WIDTH);
        }
    }
}

// Writes as logits the log-probabilities of choosing greedily or, with probability epsilon, any allowed choice. Logits
// of choices that are not allowed are arbitrary.
KERNEL(kernel_epsilon_greedy, EpsilonGreedyCall) {
    FOR_EACH_ENV(env, call.rows) {
        FOR_EACH_LANE_ALONE(k, env) {
            const Index        row      = env.index(k);
            const float* const q_values = call.q_values + row * PARAMETERS;
            float* const       logits   = call.logits + row * PARAMETERS;
            const float        epsilon  = *call.epsilon;
            for (int d = 0; d < WIDTH; ++d) {
                const Greedy greedy = greedy_choice(q_values, mask_of_row(call, row), d);
                const float  random = epsilon / float(maximum(greedy.allowed, 1));
                const float  logit  = log(maximum(random, MIN_PROBABILITY));
                for (int j = offset_of(d); j < offset_of(d) + size_of(d); ++j) logits[j] = logit;
                logits[greedy.choice] = log(maximum(random + (1.0f - epsilon), MIN_PROBABILITY));
            }
        }
    }
}

// Writes each sample's loss, half the squared error of its action's Q-value, and the gradient with respect to Q-values.
KERNEL(kernel_q_loss, QLossCall) {
    FOR_EACH_ENV(env, call.rows) {
        FOR_EACH_LANE_ALONE(k, env) {
            const Index        row      = env.index(k);
            const Index        sample   = call.indices == nullptr ? row : Index(call.indices[row]);
            const bool         active   = call.alive == nullptr || call.alive[sample] != 0;
            const float* const q_values = call.q_values + row * PARAMETERS;
            float* const       grad_q   = call.grad_q + row * PARAMETERS;
            int                chosen[WIDTH];
            float              sum = 0;
            for (int j = 0; j < PARAMETERS; ++j) grad_q[j] = 0;
            for (int d = 0; d < WIDTH; ++d) {
                // clipped, so that an inactive agent's action, which may be anything, reads nothing outside of the row
                const int choice = int(call.actions[sample * WIDTH + d]) - start_of(d);
                chosen[d]        = offset_of(d) + clip(choice, 0, size_of(d) - 1);
                sum += q_values[chosen[d]];
            }
            const float error = active ? sum / float(WIDTH) - call.returns[sample] : 0.0f;
            for (int d = 0; d < WIDTH; ++d) grad_q[chosen[d]] = error / float(WIDTH);
            for (int s = 0; s < SUM_COUNT; ++s) call.sums[s * call.rows + row] = 0;
            call.sums[VALUE_LOSS * call.rows + row] = 0.5f * error * error;
            call.sums[ALIVE * call.rows + row]      = active ? 1.0f : 0.0f;
        }
    }
}
