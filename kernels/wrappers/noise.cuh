// Noise of observations and actions, and pushes of the state. Random numbers are a function of the replica's seed,
// episode and step, and of the wrapper's number, whatever was launched before.
//
// Before noise is added, an input may be repeated and delayed. A ring buffer stores the last `length` steps, a power of
// two, step t at index t modulo length: the start of an episode needs no reset, and a step that is taken again after an
// error writes the same values again.
//
// Generated before it: Element, the inputs' type; STREAM; and the flags NOISY, and UNIFORM for uniform noise.

// The draw indices of random numbers other than noise; the noise of feature j has draw index j.
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

// A random integer from call.least to call.most, the same in all steps of an episode: its delay or interval.
template <class Call> FN int episode_integer(const Call& call, const Moment& at) {
    if (call.least == call.most) return call.least;
    return call.least + int(u64(drawn(call, at, 0, OF_EPISODE).x) * u64(call.most - call.least + 1) >> 32);
}

// A feature's noise at this step: normal with standard deviation 1, or uniform between -1 and 1.
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

// The episode's steps before this one: a copy per block of the row, so that no block reads what another writes.
FN int& steps_before(const PerturbCall& call, const Place& place) {
    return call.before[place.feature / WIDTH * call.rows + place.row];
}

FN Element& ring_element(const PerturbCall& call, const Place& place, int step) {
    return call.ring[(place.row * call.length + (step & (call.length - 1))) * FEATURES + place.feature];
}

// Whether this step repeats the previous step's input, at random with probability call.repeat.
FN bool repeats(const PerturbCall& call, const Moment& at) {
    if (call.repeat == 0.0f || at.step == 0) return false;
    float unit;
    to_unit(drawn(call, at, at.step, OF_REPEATING).x, unit);
    return unit < call.repeat;
}

// The delayed input: from the ring buffer, or `newest`; before the episode, call.initial or the episode's first input.
FN Element delayed(const PerturbCall& call, const Place& place, const Moment& at, Element newest) {
    const int sent = at.step - episode_integer(call, at);
    if (sent == at.step) return newest;
    if (sent < 0 && call.initial != nullptr) return call.initial[place.feature];
    return ring_element(call, place, maximum(sent, 0));
}

// Adds noise to an input x of a feature, and clips it to its bounds, if any; x itself without noise.
FN Element with_noise(const PerturbCall& call, const Place& place, const Moment& at, Element x) {
    if constexpr (NOISY) {
        const float scale = call.noise[place.feature];
        if (scale == 0.0f) return x;  // not clipped, even outside the bounds
        const Element noisy = x + Element(scale * noise_of(call, at, place.feature));
        return call.low == nullptr ? noisy : clip(noisy, call.low[place.feature], call.high[place.feature]);
    } else {
        return x;
    }
}

// Writes the final observation, with delay and noise, if the episode ended in this step; otherwise zero, if call.fill.
FN void perturb_final(const PerturbCall& call, const Place& place, Index i) {
    if (call.finished[place.row]) {
        const Moment  now    = moment_of(call, place.row);
        const Moment  last   = {now.seed, now.episode - 1, steps_before(call, place) + 1};
        const Element newest = call.final_given[place.row * call.final_stride + place.feature];
        const Element input  = call.ring == nullptr ? newest : delayed(call, place, last, newest);
        call.final_target[i] = with_noise(call, place, last, input);
    } else if (call.fill) {
        call.final_target[i] = 0;
    }
}

// The input after repetition and delay, before noise; writes the input of this step to the ring buffer.
FN Element repeated_and_delayed(const PerturbCall& call, const Place& place, Element input) {
    if (call.ring == nullptr) return input;
    const Moment  at   = moment_of(call, place.row);
    const Element sent = repeats(call, at) ? ring_element(call, place, at.step - 1) : input;
    ring_element(call, place, at.step) = sent;
    return delayed(call, place, at, sent);
}

// Writes the inputs with repetition, delay and noise, and the final observations, if any, with delay and noise.
KERNEL_OF_BLOCKS(kernel_perturb, PerturbCall, TEAM, 3) {
    FOR_EACH_BLOCK(number) {
        const Block block(number, call);
        for (Index first = block.first; first < block.end; first += SLOTS) {
            const Span span  = block.span(first);
            const auto place = [&](int k) -> Place {
                return {first + span.place(k) / WIDTH, block.column + span.place(k) % WIDTH};
            };
            if (call.finished != nullptr) {  // before the next episode's first input is written to the ring buffer
                const RowSpan rows = block.rows(first);
                int           ends = call.fill;
                FOR_EACH_LANE_OR(ends, k, rows) ends |= call.finished[rows.index(k)];
                if (ends) FOR_EACH_LANE_ALONE(k, span) perturb_final(call, place(k), span.index(k));
            }
            Element x[PLACES];
            FOR_EACH_LANE_ALONE(k, span) x[k] = repeated_and_delayed(call, place(k), call.given[span.index(k)]);
            FOR_EACH_LANE(k, span) {
                call.target[span.index(k)] = with_noise(call, place(k), moment_of(call, place(k).row), x[k]);
            }
        }
        if (call.before != nullptr) {
            block_barrier();
            for (Index row = block.first + thread_rank(); row < block.end; row += THREADS)
                steps_before(call, {row, block.column}) = call.elapsed[row];
        }
    }
}

// Adds noise to each replica's state at its episode's interval of steps, unless the episode is over.
KERNEL_OF_BLOCKS(kernel_push, PushCall, TEAM, 1) {
    FOR_EACH_BLOCK(number) {
        const Block block(number, call);
        for (Index i = block.first + thread_rank(); i < block.end; i += THREADS) {
            const Moment at = moment_of(call, i);
            if (at.step < call.least || was_done(call.ended, i) || at.step % episode_integer(call, at) != 0) continue;
            for (int j = 0; j < call.fields; ++j) {
                if (call.noise[j] == 0.0f) continue;  // adding zero would change the sign of -0
                reinterpret_cast<Element*>(call.addresses[j])[i] += Element(call.noise[j] * noise_of(call, at, j));
            }
        }
    }
}
