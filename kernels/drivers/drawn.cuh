// Single-agent environments with randomised parameters: each replica draws them at the start of an episode, and stores
// them in the arrays of parameters, where a step reads them like per-replica parameters.

// Without launch bounds the step's kernel takes twice the registers, and half as many threads fit on a multiprocessor,
// too few to hide memory latency. (Below 2,048 threads per multiprocessor the bounds have no effect.)
#define STEP_KERNEL(name, Call) KERNEL_OF_BLOCKS(name, Call, sizeof(real) == 4 ? 1024 : 256, sizeof(real) == 4 ? 2 : 1)

// Whether a rollout draws the parameters of the next episodes for a full tile, together with their first states.
FN constexpr bool draws_ahead() { return DRAWN_AHEAD; }

FN DrawNumbers load_numbers(const ParamBuffers& params) { return params._load(); }

// Draws the parameters of replica i's episode, which starts, stores them in the arrays, and returns them.
FN Params begin_params(const ParamBuffers& params, Index i, const Key& key) {
    Drawn drawn;
    params._draw(drawn, params._numbers, i, &key.seed, &key.episode, 0, 1);
    params._keep(i, drawn);
    return params.get(i, drawn);
}

// The drawn parameters of each lane's next episode.
struct NextParams { real of[DRAWN][LANES]; };

// Draws the parameters of lane k's next episode into `next`, and returns them; the arrays of replica i are unchanged.
FN Params next_params(NextParams& next, int k, const ParamBuffers& params, const DrawNumbers& numbers, Index i,
                      const Key& key) {
    Drawn drawn;
    params._draw(drawn, ON_GPU ? params._numbers : numbers.of, i, &key.seed, &key.episode, 0, 1);
    UNROLL
    for (int j = 0; j < DRAWN; ++j) next.of[j][k] = drawn.of[j];
    return params.get(i, drawn);
}

// Stores the drawn parameters of lane k's next episode as replica i's.
FN void store_params(const ParamBuffers& params, Index i, const NextParams& next, int k) {
    Drawn drawn;
    UNROLL
    for (int j = 0; j < DRAWN; ++j) drawn.of[j] = next.of[j][k];
    params._keep(i, drawn);
}
