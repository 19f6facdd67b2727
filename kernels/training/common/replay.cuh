// A replay buffer: for each row of agents a ring of slots, [rows, slots, STRIDE].
//
// A slot is what was observed, what was done then, the reward, and Became: what became of it, as a number. A slot's next
// observation is that of the slot after it, unless an episode ended with it: the last observation of an episode that was
// truncated lies beside the ring, in one of `places`. Truncations of a row are `limit` steps apart, or the first is
// sooner; so the steps divided by that say which place. The slot that comes next holds the newest observation alone.
//
// Generated before it: FEATURES, WIDTH (elements of an action), STRIDE.

constexpr int ACTION = FEATURES, REWARD = ACTION + WIDTH, BECAME = REWARD + 1;
static_assert(BECAME < STRIDE);

// Terminated; truncated, and not terminated; by an agent in the game; nothing yet.
enum Became : int { ENDED = 1, CUT = 2, PLAYED = 4, NEWEST = -1 };

constexpr int MOST_TRIES = 1024;

// Of numbers that nearly always have 32 bits, whose division is quick.
FN Index quotient_of(Index number, Index by) {
    return (number | by) >> 32 == 0 ? Index(u32(number) / u32(by)) : number / by;
}
FN Index remainder_of(Index number, Index by) { return number - quotient_of(number, by) * by; }

template <class Call> FN Index place_of(const Call& call, Index row, Index step) {
    return (row * call.places + step / call.limit % call.places) * FEATURES;
}

// A word of a slot.
FN float word_of(const InsertCall& call, Index from, int word, int became) {
    if (word < FEATURES) return call.observations[from * FEATURES + word];
    if (became == NEWEST) return 0.0f;
    return word < REWARD   ? call.actions[from * WIDTH + (word - ACTION)]
           : word == REWARD ? call.rewards[from]
                            : word == BECAME ? float(became) : 0.0f;
}

// Takes in the steps of a horizon, and what is observed after the last: a slot at a time, rows side by side.
KERNEL(kernel_insert, InsertCall) {
    const Index first = *call.position;
    FOR_EACH_ENV(env, call.rows * (call.steps + 1)) {
        FOR_EACH_LANE_ALONE(k, env) {
            const Index from = env.index(k), t = quotient_of(from, call.rows), row = from - t * call.rows;
            float* const to = call.ring + (row * call.slots + remainder_of(first + t, call.slots)) * STRIDE;
            int became = NEWEST;
            if (t < call.steps) {
                const bool ended = call.terminations[from] != 0, cut = !ended && call.truncations[from] != 0;
                const bool played = call.alive == nullptr || call.alive[from] != 0;
                became = (ended ? ENDED : 0) | (cut ? CUT : 0) | (played ? PLAYED : 0);
                for (int j = 0; j < FEATURES && cut; ++j) {
                    call.lasts[place_of(call, row, first + t) + j] = call.final_obs[from * FEATURES + j];
                }
            }
            for (int word = 0; word < STRIDE; word += 4) {
                Wide<4> four;
                UNROLL
                for (int e = 0; e < 4; ++e) four.value[e] = word_of(call, from, word + e, became);
                *reinterpret_cast<Wide<4>*>(to + word) = four;
            }
        }
    }
}

FN int became(const float* slot) { return int(slot[BECAME]); }

// Where a transition's observations are, in words; one that lies beside the ring is at ~place.
constexpr Index NONE = Index(1) << 62;
struct Drawn { Index begin, next; };

// Draws a transition, of those whose next `n_step` rewards are known, by agents in the game; each is as likely as any
// other. Writes all but observations and actions. Counter of a draw: (sample's number, turn's low half, turn's high half,
// REPLAY << 24 | try).
FN Drawn drawn(const DrawCall& call, Index sample) {
    const u64   key = call.stream[0], turn = call.stream[1] + call.turn;
    const Index newest = *call.position, held = minimum(newest, call.slots - 1), starts = held - call.n_step + 1;
    const Index free   = remainder_of(newest, call.slots);  // the slot that comes next
    Index       row = 0, slot = 0, age = 0;  // so many steps before the newest observation
    bool        found = false;
    for (int attempt = 0; attempt < MOST_TRIES && !found && starts > 0; ++attempt) {
        const Words words = philox(key, {u32(call.first + sample), u32(turn), u32(turn >> 32), u32(REPLAY) << 24 | u32(attempt)});
        row   = Index(u64(words.x) * u64(call.rows) >> 32);
        age   = held - Index(u64(words.y) * u64(starts) >> 32);
        slot  = free - age + (free < age ? call.slots : 0);
        found = (became(call.ring + (row * call.slots + slot) * STRIDE) & PLAYED) != 0;
    }
    const Index  begin = (row * call.slots + slot) * STRIDE;
    Index        next  = begin;
    float        sum = 0, factor = 1, discount = 0;
    for (int n = 0; n < call.n_step && found; ++n) {
        const float* const at = call.ring + (row * call.slots + slot) * STRIDE;
        sum += factor * at[REWARD];
        factor *= call.gamma;
        const int of_it = became(at);
        discount        = (of_it & ENDED) != 0 ? 0.0f : factor;
        slot            = slot + 1 == call.slots ? 0 : slot + 1;
        next            = (row * call.slots + slot) * STRIDE;
        if ((of_it & CUT) != 0) next = ~place_of(call, row, newest - age + n);
        if ((of_it & (ENDED | CUT)) != 0) break;
    }
    call.returns[sample]   = sum;
    call.discounts[sample] = discount;
    call.found[sample]     = u8(found);
    return {found ? begin : NONE, found ? next : NONE};
}

// Elements of a warp's samples, which lie side by side, go by turns over its threads, some at a time. Gives
// read(place, element) of the samples' `places`; COUNT elements of each.
template <int COUNT, class Read>
FN void spread(float* to, Index place, Index first, Index samples, const Read& read) {
    constexpr int AT_ONCE = 8;
    const int     lane = thread_rank() % WARP;
    for (int from = 0; from < COUNT; from += AT_ONCE) {
        float x[AT_ONCE];
        UNROLL
        for (int n = 0; n < AT_ONCE; ++n) {
            const int   e = (from + n) * WARP + lane, of = e / COUNT;
            const Index at = from_lane(place, of % WARP);
            if (from + n < COUNT && first + of < samples) x[n] = read(at, e % COUNT);
        }
        UNROLL
        for (int n = 0; n < AT_ONCE; ++n) {
            const int e = (from + n) * WARP + lane, of = e / COUNT;
            if (from + n < COUNT && first + of < samples) to[first * COUNT + e] = x[n];
        }
    }
}

KERNEL(kernel_draw, DrawCall) {
    FOR_EACH_ENV(env, (call.count + WARP - 1) / WARP * WARP) {
        FOR_EACH_LANE_ALONE(k, env) {
            const Index sample = env.index(k), first = sample - thread_rank() % WARP;
            Drawn       own    = {NONE, NONE};
            if (sample < call.count) own = drawn(call, sample);
            spread<FEATURES>(call.observations, own.begin, first, call.count, [&](Index at, int j) {
                return at == NONE ? 0.0f : call.ring[at + j];
            });
            spread<FEATURES>(call.next_observations, own.next, first, call.count, [&](Index at, int j) {
                return at == NONE ? 0.0f : at < 0 ? call.lasts[~at + j] : call.ring[at + j];
            });
            spread<WIDTH>(call.actions, own.begin, first, call.count, [&](Index at, int j) {
                return at == NONE ? 0.0f : call.ring[at + ACTION + j];
            });
        }
    }
}
