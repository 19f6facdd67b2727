// A replay buffer: each row (an agent of a replica) has a ring of slots, [rows, slots, STRIDE].
//
// A slot is an observation, the action, the reward, and flags. The next observation is in the following slot, unless
// the episode was truncated: final observations of truncated episodes are in `lasts`, [rows, places, FEATURES]. A row's
// truncations are at least `limit` steps apart (the first may come sooner), so step / limit selects the place. The slot
// after the newest transition has the newest observation only.
//
// Generated before it: FEATURES, WIDTH (elements of an action), STRIDE.

constexpr int ACTION = FEATURES, REWARD = ACTION + WIDTH, FLAGS = REWARD + 1;  // words of a slot
static_assert(FLAGS < STRIDE);

// TRUNCATED excludes TERMINATED; ACTIVE: the agent was active; NEWEST: there is no transition yet.
enum Flags : int { TERMINATED = 1, TRUNCATED = 2, ACTIVE = 4, NEWEST = -1 };

constexpr int MAX_ATTEMPTS = 1024;

FN Index quotient_of(Index number, Index by) {
    return (number | by) >> 32 == 0 ? Index(u32(number) / u32(by)) : number / by;  // 32-bit division is faster
}
FN Index remainder_of(Index number, Index by) { return number - quotient_of(number, by) * by; }

template <class Call> FN Index final_offset(const Call& call, Index row, Index step) {
    return (row * call.places + step / call.limit % call.places) * FEATURES;
}

// Word number `word` of the slot of the transition at index `from` of the horizon; NEWEST slots have no transition.
FN float word_of(const InsertCall& call, Index from, int word, int flags) {
    if (word < FEATURES) return call.observations[from * FEATURES + word];
    if (flags == NEWEST) return 0.0f;
    return word < REWARD   ? call.actions[from * WIDTH + (word - ACTION)]
           : word == REWARD ? call.rewards[from]
                            : word == FLAGS ? float(flags) : 0.0f;
}

// Inserts a horizon's transitions and the observations after its last step; a thread writes one slot, adjacent threads
// adjacent rows.
KERNEL(kernel_insert, InsertCall) {
    const Index first = *call.position;
    FOR_EACH_ENV(env, call.rows * (call.steps + 1)) {
        FOR_EACH_LANE_ALONE(k, env) {
            const Index from = env.index(k), t = quotient_of(from, call.rows), row = from - t * call.rows;
            float* const to = call.ring + (row * call.slots + remainder_of(first + t, call.slots)) * STRIDE;
            int flags = NEWEST;
            if (t < call.steps) {
                const bool terminated = call.terminations[from] != 0;
                const bool truncated  = !terminated && call.truncations[from] != 0;
                const bool active     = call.alive == nullptr || call.alive[from] != 0;
                flags = (terminated ? TERMINATED : 0) | (truncated ? TRUNCATED : 0) | (active ? ACTIVE : 0);
                for (int j = 0; j < FEATURES && truncated; ++j) {
                    call.lasts[final_offset(call, row, first + t) + j] = call.final_obs[from * FEATURES + j];
                }
            }
            for (int word = 0; word < STRIDE; word += 4) {
                Wide<4> four;
                UNROLL
                for (int e = 0; e < 4; ++e) four.value[e] = word_of(call, from, word + e, flags);
                *reinterpret_cast<Wide<4>*>(to + word) = four;
            }
        }
    }
}

FN int flags_of(const float* slot) { return int(slot[FLAGS]); }

// Where a transition's observation and the next one start: words of the ring; a negative `next` is ~i, for word i of
// `lasts`. NONE: no transition.
constexpr Index NONE = Index(1) << 62;
struct Transition { Index begin, next; };

// Draws a transition uniformly among transitions of active agents with `n_step` rewards in the buffer. Writes its
// return and discount, and returns where its observations are. Philox counter: (sample's number, turn's low half,
// turn's high half, REPLAY << 24 | attempt).
FN Transition draw_transition(const DrawCall& call, Index sample) {
    const u64   key = call.stream[0], turn = call.stream[1] + call.turn;
    const Index newest = *call.position, stored = minimum(newest, call.slots - 1);
    const Index candidates = stored - call.n_step + 1;  // slots of a row
    const Index head   = remainder_of(newest, call.slots);  // the slot of the newest observation
    Index       row = 0, slot = 0, age = 0;  // steps before the newest observation
    bool        valid = false;
    for (int attempt = 0; attempt < MAX_ATTEMPTS && !valid && candidates > 0; ++attempt) {
        const Words words = philox(key, {u32(call.first + sample), u32(turn), u32(turn >> 32),
                                         u32(REPLAY) << 24 | u32(attempt)});
        row   = Index(u64(words.x) * u64(call.rows) >> 32);
        age   = stored - Index(u64(words.y) * u64(candidates) >> 32);
        slot  = head - age + (head < age ? call.slots : 0);
        valid = (flags_of(call.ring + (row * call.slots + slot) * STRIDE) & ACTIVE) != 0;
    }
    const Index  begin = (row * call.slots + slot) * STRIDE;
    Index        next  = begin;
    float        sum = 0, factor = 1, discount = 0;
    for (int n = 0; n < call.n_step && valid; ++n) {
        const float* const at = call.ring + (row * call.slots + slot) * STRIDE;
        sum += factor * at[REWARD];
        factor *= call.gamma;
        const int flags = flags_of(at);
        discount        = (flags & TERMINATED) != 0 ? 0.0f : factor;
        slot            = slot + 1 == call.slots ? 0 : slot + 1;
        next            = (row * call.slots + slot) * STRIDE;
        if ((flags & TRUNCATED) != 0) next = ~final_offset(call, row, newest - age + n);
        if ((flags & (TERMINATED | TRUNCATED)) != 0) break;
    }
    call.returns[sample]   = sum;
    call.discounts[sample] = discount;
    call.valid[sample]     = u8(valid);
    return {valid ? begin : NONE, valid ? next : NONE};
}

// Copies COUNT elements of each of a warp's samples, with coalesced writes: `to` gets read(offset, element), where
// `offset` belongs to this thread's sample.
template <int COUNT, class Read>
FN void copy_elements(float* to, Index offset, Index first, Index samples, const Read& read) {
    constexpr int AT_ONCE = 8;
    const int     lane = thread_rank() % WARP;
    for (int from = 0; from < COUNT; from += AT_ONCE) {
        float x[AT_ONCE];
        UNROLL
        for (int n = 0; n < AT_ONCE; ++n) {
            const int   e = (from + n) * WARP + lane, of = e / COUNT;
            const Index at = shuffle(offset, of % WARP);
            if (from + n < COUNT && first + of < samples) x[n] = read(at, e % COUNT);
        }
        UNROLL
        for (int n = 0; n < AT_ONCE; ++n) {
            const int e = (from + n) * WARP + lane, of = e / COUNT;
            if (from + n < COUNT && first + of < samples) to[first * COUNT + e] = x[n];
        }
    }
}

// Draws `count` transitions, and copies their observations, next observations and actions; zeros if there is none.
KERNEL(kernel_draw, DrawCall) {
    FOR_EACH_ENV(env, (call.count + WARP - 1) / WARP * WARP) {
        FOR_EACH_LANE_ALONE(k, env) {
            const Index sample     = env.index(k), first = sample - thread_rank() % WARP;
            Transition  transition = {NONE, NONE};
            if (sample < call.count) transition = draw_transition(call, sample);
            copy_elements<FEATURES>(call.observations, transition.begin, first, call.count, [&](Index at, int j) {
                return at == NONE ? 0.0f : call.ring[at + j];
            });
            copy_elements<FEATURES>(call.next_observations, transition.next, first, call.count, [&](Index at, int j) {
                return at == NONE ? 0.0f : at < 0 ? call.lasts[~at + j] : call.ring[at + j];
            });
            copy_elements<WIDTH>(call.actions, transition.begin, first, call.count, [&](Index at, int j) {
                return at == NONE ? 0.0f : call.ring[at + ACTION + j];
            });
        }
    }
}
