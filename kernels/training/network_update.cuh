// The gradient of the loss of a minibatch by all weights of actor and critic, in one launch and a sum.
//
// Some of the blocks have the actor, the others the critic. A block takes tiles of samples, and at the end
// writes its sums; network_step.cuh adds those of all blocks, in a fixed order. What both have alike is done outside of the
// two branches: it is compiled once so.

template <bool ACTOR, int OUTPUTS>
FN void update(Gradients& sums, SampleRow& sample, const UpdateCall& call, const Places& places, int rows, int place,
               int worker, int workers) {
    fetch_facts<ACTOR, !ACTOR>(sample, call);
    Learner<ACTOR, OUTPUTS> learner(sums, call, places, rows);
    for (Index tile = worker; tile * TILE < call.rows; tile += workers) {
        learner.learn(sample, (tile + 2 * workers) * TILE + place);
    }
    learner.write(call.partials + Index(worker) * (call.parameters + SUMS), places, rows);
}

KERNEL_OF_BLOCKS(kernel_update, UpdateCall, THREADS, UPDATE_BLOCKS) {
    const int    actors = call.actors, block = block_number();
    const bool   acts   = block < actors;
    const int    worker = acts ? block : block - actors, workers = acts ? actors : block_count() - actors;
    const Places places = acts ? ACTOR_PLACES : CRITIC_PLACES;
    const int    place  = thread_rank() / WARP * WARP_ROWS + warp_lane() % WARP_ROWS;
    SampleRow    sample;
    sample.place = place_of(call, Index(worker) * TILE + place);
    sample.next  = place_of(call, Index(worker + workers) * TILE + place);
    fetch_inputs(sample, call, warp_lane());
    load_alike(call, places);
    Gradients sums;
    if (acts) update<true, PARAMETERS>(sums, sample, call, ACTOR_PLACES, MEANS, place, worker, workers);
    else update<false, 1>(sums, sample, call, CRITIC_PLACES, 1, place, worker, workers);
    sums.write(call.partials + Index(worker) * (call.parameters + SUMS), places, acts ? MEANS : 1);
}
