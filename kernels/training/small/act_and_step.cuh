// A policy acts in single-agent environments for a whole horizon, in one launch. Each warp has ROWS replicas: a thread
// keeps the state of its own in registers from the first step to the last, and tensor cores run the network, which lies
// in the block's memory, for 16 of them at a time. Once that is loaded nobody waits for another warp. CUDA only.
//
// Before it: in the namespace `acting` the network, with act.cuh, and OBSERVATION_BYTES; then the environment, with one_step.cuh.

struct RowsOfWarp {
    Index own, count;  // this thread's replica, and where those of the warp end
    FN Index index(int) const { return own; }
    FN bool  has(int) const { return own < count; }
};

// On to the next row of what has a row of `count` replicas for each step.
FN void go_on(StepCall& step, ActCall& act, Index count) {
    step.observations += count * OBSERVATION_SIZE;
    step.rewards += count;
    step.terminations += count;
    step.truncations += count;
    step.episode_return += count;
    step.episode_length += count;
    if (step.final_obs != nullptr) step.final_obs += count * OBSERVATION_SIZE;
    go_on_with_metrics(step, count);
    act.turn += 1;
    act.actions += count * acting::WIDTH;
    act.log_probs += count;
}

KERNEL_OF_BLOCKS(kernel_act_and_step, ActAndStepCall, acting::THREADS, acting::BLOCKS) {
    using Memory = acting::ActMemory<acting::PARAMETERS>;
    Memory&             memory  = *reinterpret_cast<Memory*>(reinterpret_cast<char*>(staging) + acting::OBSERVATION_BYTES);
    const Buffers&      buffers = call.step.buffers;
    StepCall            step    = call.step;
    ActCall             act     = call.act;
    const acting::Scale scale   = {act.mean, act.inverse, act.limit};
    acting::load<acting::PARAMETERS>(memory.net, nullptr, act.flat, acting::ACTOR_PLACES, acting::MEANS, scale);
    const int   lane = acting::warp_lane(), warp = thread_rank() / WARP;
    const Index count = buffers.count, first = (block_number() * Index(acting::WARPS) + warp) * acting::ROWS;
    if (first >= count) return;
    const Index      bound = minimum(first + acting::ROWS, count);
    const RowsOfWarp env   = {first + lane, bound};
    Tile tile;
    u32  episodes[LANES];
    int  finished[LANES];
    const u32   staggered = now(buffers.staggered);
    const Seeds seeds(buffers);
    FOR_EACH_LANE(k, env) episodes[k] = buffers.episodes[env.index(k)];
    load(tile, buffers, env);
    float* const outputs = memory.outputs + warp * WARP * acting::ROW_STRIDE;
    ROLLED
    for (int turn = 0; turn < call.horizon; ++turn) {
        ROLLED
        for (int part = 0; part < acting::ROWS; part += acting::WARP_ROWS) {
            const Index above = first + part + lane / 4, below = above + 8;
            const int   place_above = above < bound ? int(above) : -1, place_below = below < bound ? int(below) : -1;
            acting::InputRows x;
            acting::fetch_rows(x, act.observations, place_above, place_below, lane);
            acting::go_forth(memory.net, x, scale, outputs + part * acting::ROW_STRIDE, lane);
        }
        acting::draw_action(act, memory.outputs, env.index(0), env.has(0));
        step.actions = acting::DISCRETE ? static_cast<const void*>(act.actions) : act.acted;
        take_actions(step, tile, env);
        advance_tile(step, tile, seeds, episodes, staggered, finished, env);
        act.observations = step.observations;
        hand_out_results(step, tile, finished, env);
        warp_barrier();  // others of this warp read these observations
        go_on(step, act, count);
    }
    store(tile, buffers, env);
}
