// A policy acts in single-agent environments for a whole horizon, in one launch. Each warp has ROWS replicas: a thread
// keeps the state of its own in registers from the first step to the last, and tensor cores run the network, which lies
// in the block's memory, for 16 of them at a time. Nobody waits for another warp. CUDA only.
//
// Before it: in the namespace `policy` the network, with network_forth.cuh; then the environment, with one_step.cuh.

struct RowsOfWarp {
    Index own, count;  // this thread's replica, and where those of the warp end
    FN Index index(int) const { return own; }
    FN bool  has(int) const { return own < count; }
};

// From one step of the horizon to the next: `count` replicas further on in what has a row for each step.
template <class T> FN void go_on(T*& at, Index elements) {
    if (at != nullptr) at += elements;
}
FN void go_on(StepCall& step, policy::ActCall& act, Index count) {
    step.launch += 1;
    go_on(step.observations, count * OBSERVATION_SIZE);
    go_on(step.rewards, count);
    go_on(step.terminations, count);
    go_on(step.truncations, count);
    if constexpr (AUTORESET == SAME_STEP) go_on(step.final_obs, count * OBSERVATION_SIZE);
    if constexpr (STATISTICS) {
        go_on(step.episode_return, count);
        go_on(step.episode_length, count);
    }
    go_on_with_metrics(step, count);
    act.turn += 1;
    act.actions += count * policy::WIDTH;
    act.log_probs += count;
}

KERNEL_OF_BLOCKS(kernel_act_and_step, ActAndStepCall, policy::THREADS, policy::BLOCKS) {
    constexpr int staged = policy::padded(policy::THREADS * OBSERVATION_SIZE * int(sizeof(float)), 128);
    auto&         memory = *reinterpret_cast<policy::ActMemory<policy::PARAMETERS>*>(reinterpret_cast<char*>(staging) + staged);
    StepCall        step = call.step;
    policy::ActCall act  = call.act;
    const Buffers&      buffers = call.step.buffers;
    const policy::Scale scale   = {act.mean, act.inverse, act.limit};
    policy::load<policy::PARAMETERS>(memory.net, nullptr, act.flat, policy::ACTOR_PLACES, policy::MEANS, scale);
    const int   lane = policy::warp_lane(), warp = thread_rank() / WARP;
    const Index count = buffers.count, first = (block_number() * Index(policy::WARPS) + warp) * policy::ROWS;
    if (first >= count) return;
    const Index      end = first + policy::ROWS < count ? first + policy::ROWS : count;
    const RowsOfWarp env = {first + lane, end};
    Tile tile;
    u32  episodes[LANES];
    int  finished[LANES];
    const u32   staggered = now(buffers.staggered);
    const Seeds seeds(buffers);
    FOR_EACH_LANE(k, env) episodes[k] = buffers.episodes[env.index(k)];
    load(tile, buffers, env);
    float* const outputs = memory.outputs + warp * WARP * policy::ROW_STRIDE;
    ROLLED
    for (int t = 0; t < call.horizon; ++t) {
        ROLLED
        for (int part = 0; part < policy::ROWS; part += policy::WARP_ROWS) {
            const Index       g = first + part + lane / 4, h = g + 8;
            policy::InputRows x;
            policy::fetch_rows(x, act.observations, g < end ? int(g) : -1, h < end ? int(h) : -1, lane);
            policy::go_forth(memory.net, x, scale, outputs + part * policy::ROW_STRIDE, lane);
        }
        policy::draw_action(act, memory.outputs, env.index(0), env.has(0));
        step.actions = act.acted != nullptr ? static_cast<const void*>(act.acted) : act.actions;
        take_actions(step, tile, env);
        advance(step, tile, seeds, episodes, staggered, finished, env);
        act.observations = step.observations;
        hand_out_results(step, tile, finished, env);
        warp_barrier();  // others of this warp read these observations
        go_on(step, act, count);
    }
    store(tile, buffers, env);
}
