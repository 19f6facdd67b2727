// A policy acts in single-agent environments for a full horizon, in one launch. Each warp has ROWS replicas: a thread
// keeps its replica's state in registers from the first step to the last, and tensor cores run the network, in shared
// memory, for 16 replicas at a time. After the weights are loaded no warp waits for another. CUDA only.
//
// Before it: in the namespace `acting` the network, with act.cuh, and OBSERVATION_BYTES; then the environment, with
// one_step.cuh, and advance.cuh.

struct RowsOfWarp {
    Index replica, count;  // this thread's replica, and the number of replicas up to the end of the warp's
    FN Index index(int) const { return replica; }
    FN bool  has(int) const { return replica < count; }
};

// Runs `horizon` steps of all replicas. Each runs the network, draws actions, steps the environment and writes results.
KERNEL_OF_BLOCKS(kernel_act_and_step, ActAndStepCall, acting::THREADS, acting::BLOCKS) {
    using Memory = acting::ActMemory<acting::PARAMETERS>;
    char* const         shared  = reinterpret_cast<char*>(staging);
    Memory&             memory  = *reinterpret_cast<Memory*>(shared + acting::OBSERVATION_BYTES);
    const Buffers&      buffers = call.step.buffers;
    StepCall            step    = call.step;
    ActCall             act     = call.act;
    const acting::Scale scale   = {act.mean, act.inverse, act.limit};
    acting::load<acting::PARAMETERS>(memory.net, nullptr, act.flat, acting::ACTOR_OFFSETS, acting::MEANS, scale);
    const int   lane = acting::warp_lane(), warp = thread_rank() / WARP;
    const Index count = buffers.count, first = (block_number() * Index(acting::WARPS) + warp) * acting::ROWS;
    if (first >= count) return;
    const Index      end   = minimum(first + acting::ROWS, count);
    const RowsOfWarp env   = {first + lane, end};
    Tile tile;
    u32  episodes[LANES];
    int  finished[LANES];
    const u32   staggered = load_count(buffers.staggered);
    const Seeds seeds(buffers);
    FOR_EACH_LANE(k, env) episodes[k] = buffers.episodes[env.index(k)];
    load(tile, buffers, env);
    float* const outputs = memory.outputs + warp * WARP * acting::ROW_STRIDE;
    NO_UNROLL
    for (int t = 0; t < call.horizon; ++t) {
        NO_UNROLL
        for (int part = 0; part < acting::ROWS; part += acting::WARP_ROWS) {
            const Index above = first + part + lane / 4, below = above + 8;
            const int   index_above = above < end ? int(above) : -1, index_below = below < end ? int(below) : -1;
            acting::InputRows x;
            acting::fetch_rows(x, act.observations, index_above, index_below, lane);
            acting::forward(memory.net, x, scale, outputs + part * acting::ROW_STRIDE, lane);
        }
        acting::draw_action(act, memory.outputs, env.index(0), env.has(0));
        step.actions = acting::DISCRETE ? static_cast<const void*>(act.actions) : act.acted;
        load_actions(step, tile, env);
        advance_tile(step, tile, seeds, episodes, staggered, finished, env);
        act.observations = step.observations;
        store_results(step, tile, finished, env);
        warp_barrier();  // other threads of the warp read these observations
        advance(step, act, count);
    }
    store(tile, buffers, env);
}
