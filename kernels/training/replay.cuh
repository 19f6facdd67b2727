// A replay buffer: for each row of agents a ring of slots, [rows, slots, STRIDE].
//
// A slot is what was observed, what was done then, the reward, and Became: what became of it, as a number. A slot's next
// observation is that of the slot after it, unless an episode ended with it: the last observation of an episode that was
// truncated lies beside the ring, in one of `places`. Truncations of a row are `limit` steps apart, or the first is
// sooner; so the steps divided by that say which place. The slot that comes next holds the newest observation alone.
//
// Generated before it: FEATURES, WIDTH (elements of an action), STRIDE, SHARES (threads to a row that is read).

constexpr int ACTION = FEATURES, REWARD = ACTION + WIDTH, BECAME = REWARD + 1;
static_assert(BECAME < STRIDE);

enum Became : int { ENDED = 1, CUT = 2, PLAYED = 4 };  // terminated; truncated, and not terminated; by an agent in the game

constexpr int MOST_TRIES = 1024;

template <class Call> FN Index place_of(const Call& call, Index row, Index step) {
    return (row * call.places + step / call.limit % call.places) * FEATURES;
}

// Takes in the steps of a horizon, and what is observed after the last: a thread for each word.
KERNEL(kernel_insert, InsertCall) {
    const Index first = *call.position;
    FOR_EACH_ENV(env, call.rows * (call.steps + 1) * STRIDE) {
        FOR_EACH_LANE_ALONE(k, env) {
            const Index element = env.index(k), line = element / STRIDE;
            const int   word = int(element - line * STRIDE);
            const Index row = line / (call.steps + 1), t = line - row * (call.steps + 1), from = t * call.rows + row;
            float&      to = call.ring[(row * call.slots + (first + t) % call.slots) * STRIDE + word];
            if (word < FEATURES) to = call.observations[from * FEATURES + word];
            if (t == call.steps) continue;
            const bool ended = call.terminations[from] != 0, cut = !ended && call.truncations[from] != 0;
            if (word < FEATURES) {
                if (cut) call.lasts[place_of(call, row, first + t) + word] = call.final_obs[from * FEATURES + word];
            } else if (word < REWARD) {
                to = call.actions[from * WIDTH + (word - ACTION)];
            } else if (word == REWARD) {
                to = call.rewards[from];
            } else if (word == BECAME) {
                const bool played = call.alive == nullptr || call.alive[from] != 0;
                to = float((ended ? ENDED : 0) | (cut ? CUT : 0) | (played ? PLAYED : 0));
            }
        }
    }
}

FN int became(const float* slot) { return int(slot[BECAME]); }

// Draws transitions, of those whose next `n_step` rewards are known, by agents in the game; each is as likely as any
// other. Counter of a draw: (sample's number, turn's low half, turn's high half, REPLAY << 24 | try).
FN void draw(const DrawCall& call, Index sample, int lane) {
    const u64   key = call.stream[0], turn = call.stream[1] + call.turn;
    const Index newest = *call.position, oldest = maximum(Index(0), newest - (call.slots - 1));
    const Index starts = newest - call.n_step + 1 - oldest;
    Index       row = 0, step = oldest;
    bool        found = false;
    for (int attempt = 0; attempt < MOST_TRIES && !found && starts > 0; ++attempt) {
        const Words words = philox(key, {u32(call.first + sample), u32(turn), u32(turn >> 32), u32(REPLAY) << 24 | u32(attempt)});
        row   = Index(u64(words.x) * u64(call.rows) >> 32);
        step  = oldest + Index(u64(words.y) * u64(starts) >> 32);
        found = (became(call.ring + (row * call.slots + step % call.slots) * STRIDE) & PLAYED) != 0;
    }
    const float* const ring = call.ring + row * call.slots * STRIDE;
    const float* const begin = ring + step % call.slots * STRIDE;
    const float*       next = begin;
    float              sum = 0, factor = 1, discount = 0;
    for (int n = 0; n < call.n_step && found; ++n) {
        const float* const slot = ring + (step + n) % call.slots * STRIDE;
        sum += factor * slot[REWARD];
        factor *= call.gamma;
        const int of_it = became(slot);
        discount        = (of_it & ENDED) != 0 ? 0.0f : factor;
        next            = ring + (step + n + 1) % call.slots * STRIDE;
        if ((of_it & CUT) != 0) next = call.lasts + place_of(call, row, step + n);
        if ((of_it & (ENDED | CUT)) != 0) break;
    }
    for (int j = lane; j < FEATURES; j += SHARES) {
        call.observations[sample * FEATURES + j]      = found ? begin[j] : 0.0f;
        call.next_observations[sample * FEATURES + j] = found ? next[j] : 0.0f;
    }
    for (int j = lane; j < WIDTH; j += SHARES) call.actions[sample * WIDTH + j] = found ? begin[ACTION + j] : 0.0f;
    if (lane == 0) {
        call.returns[sample]   = sum;
        call.discounts[sample] = discount;
        call.found[sample]     = u8(found);
    }
}

KERNEL(kernel_draw, DrawCall) {
    FOR_EACH_ENV(env, call.count * SHARES) {
        FOR_EACH_LANE_ALONE(k, env) draw(call, env.index(k) / SHARES, int(env.index(k) % SHARES));
    }
}
