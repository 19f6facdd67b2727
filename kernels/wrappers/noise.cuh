// Noise: of what a policy sees or does, and pushes of the state. What is random is a function of the replica's seed, its
// episode and step, and of the wrapper's number, so the same numbers come whatever was launched before.
//
// Before the noise, what is given may be repeated, and be late. The last `length` steps, a power of two, are kept in a
// ring, where step t has place t modulo length: nothing has to be done where an episode begins, and a step that is taken
// again, as after an error, writes what stands there.
//
// Generated before it: Element, the type of what is changed; STREAM; NOISY, whether there is noise; and UNIFORM, whether
// it is uniform.

// What is drawn beside a step's noise, whose draws are numbered as its features are.
constexpr u32 OF_EPISODE = ~0u, OF_REPEATING = ~0u - 1;

struct Moment {
    u64 seed;
    u32 episode;
    int step;
};

template <class Call> FN Moment moment_of(const Call& call, Index row) {
    return {call.seeds[row], u32(call.episodes[row]), call.elapsed[row]};
}

template <class Call> FN Words drawn(const Call& call, const Moment& at, int step, u32 draw) {
    return random_words(at.seed, STREAM, u32(call.number), at.episode, u32(step), draw);
}

// A whole number from `least` to `most`, the same in all steps of an episode.
template <class Call> FN int drawn_whole(const Call& call, const Moment& at) {
    if (call.least == call.most) return call.least;
    return call.least + int(u64(drawn(call, at, 0, OF_EPISODE).x) * u64(call.most - call.least + 1) >> 32);
}

// Of deviation 1, or between -1 and 1.
template <class Call> FN float noise_of(const Call& call, const Moment& at, int feature) {
    const Words words = drawn(call, at, at.step, u32(feature));
    float u, v;
    to_unit(words.x, u);
    to_unit(words.y, v);
    return UNIFORM ? 2.0f * u - 1.0f : square_root(-2.0f * log(1.0f - u)) * cos(float(2 * PI) * v);
}

// One feature of one replica's observation or action.
struct Place {
    Index row;
    int   feature;
};

// The steps that a replica had taken before this one. Each of the blocks that share a row keeps its own, so that none
// reads what another writes.
FN int& before(const PerturbCall& call, const Place& place) {
    return call.before[place.feature / WIDTH * call.rows + place.row];
}

FN Element& kept(const PerturbCall& call, const Place& place, int step) {
    return call.ring[(place.row * call.length + (step & (call.length - 1))) * FEATURES + place.feature];
}

FN bool repeats(const PerturbCall& call, const Moment& at) {
    if (call.repeat == 0.0f || at.step == 0) return false;
    float unit;
    to_unit(drawn(call, at, at.step, OF_REPEATING).x, unit);
    return unit < call.repeat;
}

// What arrives in this step, of which `newest` was sent: before an episode's first there is `initial`, or that first.
FN Element arriving(const PerturbCall& call, const Place& place, const Moment& at, Element newest) {
    const int sent = at.step - drawn_whole(call, at);
    if (sent == at.step) return newest;
    if (sent < 0 && call.initial != nullptr) return call.initial[place.feature];
    return kept(call, place, maximum(sent, 0));
}

FN Element with_noise(const PerturbCall& call, const Place& place, const Moment& at, Element x) {
    if constexpr (NOISY) {
        const float scale = call.noise[place.feature];
        if (scale == 0.0f) return x;  // as it is, even outside the bounds
        const Element noisy = x + Element(scale * noise_of(call, at, place.feature));
        return call.low == nullptr ? noisy : clip(noisy, call.low[place.feature], call.high[place.feature]);
    } else {
        return x;
    }
}

// The last observation of an episode that ended in this step.
FN void perturb_final(const PerturbCall& call, const Place& place, Index i) {
    if (call.finished[place.row]) {
        const Moment  now    = moment_of(call, place.row);
        const Moment  last   = {now.seed, now.episode - 1, before(call, place) + 1};
        const Element newest = call.final_given[place.row * call.final_stride + place.feature];
        const Element late   = call.ring == nullptr ? newest : arriving(call, place, last, newest);
        call.final_target[i] = with_noise(call, place, last, late);
    } else if (call.fill) {
        call.final_target[i] = 0;
    }
}

// What is there before the noise.
FN Element passed_on(const PerturbCall& call, const Place& place, Element given) {
    if (call.ring == nullptr) return given;
    const Moment  at   = moment_of(call, place.row);
    const Element sent = repeats(call, at) ? kept(call, place, at.step - 1) : given;
    kept(call, place, at.step) = sent;
    return arriving(call, place, at, sent);
}

KERNEL_OF_BLOCKS(kernel_perturb, PerturbCall, TEAM, 3) {
    FOR_EACH_BLOCK(number) {
        const Block block(number, call);
        for (Index first = block.first; first < block.end; first += SLOTS) {
            const Span span  = block.span(first);
            const auto place = [&](int k) -> Place {
                return {first + span.place(k) / WIDTH, block.column + span.place(k) % WIDTH};
            };
            if (call.finished != nullptr) {  // before the first of the next episode goes into the ring
                const RowSpan rows = block.rows(first);
                int           ends = call.fill;
                FOR_EACH_LANE_OR(ends, k, rows) ends |= call.finished[rows.index(k)];
                if (ends) FOR_EACH_LANE_ALONE(k, span) perturb_final(call, place(k), span.index(k));
            }
            Element x[PLACES];
            FOR_EACH_LANE_ALONE(k, span) x[k] = passed_on(call, place(k), call.given[span.index(k)]);
            FOR_EACH_LANE(k, span) {
                call.target[span.index(k)] = with_noise(call, place(k), moment_of(call, place(k).row), x[k]);
            }
        }
        if (call.before != nullptr) {
            block_barrier();
            for (Index row = block.first + thread_rank(); row < block.end; row += THREADS)
                before(call, {row, block.column}) = call.elapsed[row];
        }
    }
}

// Pushes each replica in every so many of an episode's steps, unless the episode is over. A thread a replica.
KERNEL_OF_BLOCKS(kernel_push, PushCall, TEAM, 1) {
    FOR_EACH_BLOCK(number) {
        const Block block(number, call);
        for (Index i = block.first + thread_rank(); i < block.end; i += THREADS) {
            const Moment at = moment_of(call, i);
            if (at.step < call.least || was_over(call.ended, i) || at.step % drawn_whole(call, at) != 0) continue;
            for (int j = 0; j < call.fields; ++j) {
                if (call.noise[j] == 0.0f) continue;  // so that not even a zero's sign changes
                reinterpret_cast<Element*>(call.addresses[j])[i] += Element(call.noise[j] * noise_of(call, at, j));
            }
        }
    }
}
