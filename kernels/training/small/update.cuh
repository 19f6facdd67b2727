// The gradient of a minibatch's loss with respect to all weights of actor and critic, in one launch. Some blocks run
// the actor, the rest the critic. A block accumulates the gradients of its tiles of samples in registers, and writes
// its sums at the end; step.cuh adds the sums of all blocks. A Learner (by_warps.cuh, by_groups.cuh) runs a tile.

struct SampleRow : Sample {
    int       next_index;  // of this row's sample in the next tile
    InputRows x;
};

template <class Call> FN void fetch_inputs(SampleRow& sample, const Call& call, int lane) {
    const int index = sample.index;
    fetch_rows(sample.x, call.observations, shuffle(index, lane / 4), shuffle(index, lane / 4 + 8), lane);
}

// Zeros the observations of inactive agents: they may be NaN, and NaN times a zero gradient is NaN.
FN void clear_inactive(SampleRow& sample, int lane) {
    const int active = sample.alive != 0;
    if (!shuffle(active, lane / 4)) {
        UNROLL
        for (int j = 0; j < INPUTS / 8; ++j) sample.x[j][0] = sample.x[j][1] = 0;
    }
    if (!shuffle(active, lane / 4 + 8)) {
        UNROLL
        for (int j = 0; j < INPUTS / 8; ++j) sample.x[j][2] = sample.x[j][3] = 0;
    }
}

// Loads a thread's fragment of the outputs' gradients.
template <int OUTPUTS, int N> FN void fetch_outputs(float (&grad_out)[N][4], const float* outputs, int lane) {
    FOR_EACH_NUMBER(j, q, N) {
        const int column = 8 * j + lane % 4 * 2 + q % 2;
        grad_out[j][q]   = column < OUTPUTS ? outputs[(lane / 4 + q / 2 * 8) * ROW_STRIDE + column] : 0.0f;
    }
}

// The network of a block: a compile-time constant, or chosen at run time if both networks run the same code.
template <bool ACTOR> struct FixedRole {
    static constexpr bool is_actor = ACTOR;
    static constexpr int  OUTPUTS  = ACTOR ? PARAMETERS : 1;  // outputs that fit in the memory
    FN static constexpr int outputs() { return OUTPUTS; }
};
struct BlockRole {
    static constexpr int OUTPUTS = PARAMETERS;
    bool is_actor;
    FN int outputs() const { return is_actor ? PARAMETERS : 1; }
};

// Returns the current sample, without its observation, and fetches the next tile's sample into `row`, except for its
// observation, which the caller fetches when registers are free.
template <class Role, class Call>
FN Sample advance_sample(SampleRow& row, const Role& role, const Call& call, Index after_next) {
    const Sample current = row;
    row.index      = row.next_index;
    row.next_index = sample_index(call, after_next);
    fetch_sample(row, call, role.is_actor, !role.is_actor);
    return current;
}

// Adds a sample's loss, and overwrites the thread's `row` of outputs with their gradients; `block_outputs` has all
// rows. (The critic's unused columns need no gradient: they are zero already, because their weights are.)
template <class Role, class Losses>
FN void add_loss(const Role& role, Losses& losses, const Sample& sample, float* block_outputs, float* row) {
    if (role.is_actor) losses.policy(sample, block_outputs);
    else losses.value(sample, row);
}

// Accumulates one network's gradient over a block's tiles; defined in by_warps.cuh and in by_groups.cuh.
template <class Role, class Call> struct Learner;

// The number of blocks that run the actor, the first; the rest run the critic. Fewer blocks than workers are half each.
template <class Call> FN int actor_blocks(const Call& call) {
    return SEVERAL && block_count() < call.actors + call.critics ? block_count() / 2 : call.actors;
}

// The order of a block's tiles. A worker has every `workers`-th tile. A slice is every `slices`-th worker, in the order
// of step.cuh's additions. A network's blocks take its slices in turn: block b has slices b, b + blocks, ...
template <class Call, bool IN_TURN> struct Tiles {
    const Call& call;
    int         workers, slices, blocks, slice, worker = slice;
    Index       tile = slice;

    FN void advance() {
        tile += workers;
        if (!IN_TURN || tile * TILE < call.rows) return;
        worker += slices;
        if (worker >= workers) worker = slice += blocks;
        tile = slice < slices ? worker : call.rows;  // beyond the last: no sample
    }
    FN Index sample(int index) const { return tile * TILE + index; }
};

// Runs a block's tiles through one network. Writes the sums of gradient and loss to `partials`: a row for each slice,
// or one row of a network's only block.
template <class Role, class Call> FN void update_net(const Role& role, const Call& call) {
    constexpr bool IN_TURN = Learner<Role, Call>::IN_TURN;
    const int  index   = thread_rank() / WARP * WARP_ROWS + warp_lane() % WARP_ROWS;
    const int  workers = role.is_actor ? call.actors : call.critics, actors = actor_blocks(call);
    const int  block   = role.is_actor ? block_number() : block_number() - actors;
    const int  blocks  = role.is_actor ? actors : block_count() - actors;
    const int  slices  = workers > SLICES && blocks < workers ? SLICES : blocks == 1 ? 1 : workers;
    Tiles<Call, IN_TURN> tiles = {call, workers, slices, blocks, block};
    SampleRow            sample;
    sample.index = sample_index(call, tiles.sample(index));
    tiles.advance();
    sample.next_index = sample_index(call, tiles.sample(index));
    const Offsets offsets = role.is_actor ? ACTOR_OFFSETS : CRITIC_OFFSETS;
    const int     rows    = role.is_actor ? MEANS : 1;
    fetch_sample(sample, call, role.is_actor, !role.is_actor);
    Learner<Role, Call> learner(role, call, offsets, rows);
    fetch_inputs(sample, call, warp_lane());
    const auto partial = [&](int row) { return call.partials + Index(row) * (call.parameters + SUMS); };
    if constexpr (IN_TURN) {
        for (int slice = block; slice < slices; slice += blocks) {
            for (int worker = slice; worker < workers; worker += slices) {
                learner.begin();
                for (Index tile = worker; tile * TILE < call.rows; tile += workers) {
                    tiles.advance();
                    learner.add_tile(sample, tiles.sample(index));
                }
                learner.add_to_sums();
            }
            learner.write_sums(partial(blocks == 1 ? 0 : slice), offsets, rows, blocks > 1 || slice == 0);
        }
    } else {
        for (Index tile = block; tile * TILE < call.rows; tile += workers) {
            learner.add_tile(sample, (tile + 2 * workers) * TILE + index);
        }
        learner.write(partial(block), offsets, rows);
    }
}

// Runs actor and critic; with ONE_PROGRAM both run the same code.
template <bool ONE_PROGRAM, class Call> FN void update(const Call& call) {
    const bool is_actor = block_number() < actor_blocks(call);
    if constexpr (ONE_PROGRAM) update_net(BlockRole{is_actor}, call);
    else if (is_actor) update_net(FixedRole<true>(), call);
    else update_net(FixedRole<false>(), call);
}
