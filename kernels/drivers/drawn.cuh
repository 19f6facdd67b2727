// Parameters that each replica draws when an episode begins, of single-agent environments. They are kept in the arrays of
// parameters, where a step reads them as it reads those that replicas were given.

// Left alone, a step that draws takes so many registers that half as many threads fit, too few to hide the wait for
// memory. (A multiprocessor that holds fewer than 2,048 leaves it alone.)
#define STEP_KERNEL(name, Call) KERNEL_OF_BLOCKS(name, Call, sizeof(real) == 4 ? 1024 : 256, sizeof(real) == 4 ? 2 : 1)

// Whether a rollout draws those of the episodes that come next for a whole tile, as it makes their first states.
FN constexpr bool ahead() { return DRAWN_AHEAD; }

// Those of an episode that begins; they are kept.
FN Params begin_params(const ParamBuffers& params, Index i, const Key& key) {
    Drawn drawn;
    params._draw(drawn, i, &key.seed, &key.episode, 0, 1);
    params._keep(i, drawn);
    return params.get(i, drawn);
}

// Those of episodes that will begin, lane by lane.
struct SpareParams { real of[DRAWN][LANES]; };

FN Params spare_params(SpareParams& spare, int k, const ParamBuffers& params, Index i, const Key& key) {
    Drawn drawn;
    params._draw<true>(drawn, i, &key.seed, &key.episode, 0, 1);
    UNROLL
    for (int j = 0; j < DRAWN; ++j) spare.of[j][k] = drawn.of[j];
    return params.get(i, drawn);
}

FN void keep_params(const ParamBuffers& params, Index i, const SpareParams& spare, int k) {
    Drawn drawn;
    UNROLL
    for (int j = 0; j < DRAWN; ++j) drawn.of[j] = spare.of[j][k];
    params._keep(i, drawn);
}
