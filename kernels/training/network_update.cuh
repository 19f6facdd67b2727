// The gradient of the loss of a minibatch by all weights of actor and critic, in one launch and a sum.
//
// Some of the blocks have the actor, the others the critic. A block takes tiles of samples, and at the end
// writes its sums; network_step.cuh adds those of all blocks, in a fixed order.

template <bool ACTOR, int OUTPUTS>
FN void update(const UpdateCall& call, const Places& places, int rows, int worker, int workers) {
    const int place = thread_rank() / WARP * WARP_ROWS + warp_lane() % WARP_ROWS;
    SampleRow sample;
    sample.place = place_of(call, Index(worker) * TILE + place);
    sample.next  = place_of(call, Index(worker + workers) * TILE + place);
    fetch<ACTOR>(sample, call, warp_lane());
    Learner<ACTOR, OUTPUTS> learner(call, places, rows);
    for (Index tile = worker; tile * TILE < call.rows; tile += workers) {
        learner.learn(sample, (tile + 2 * workers) * TILE + place);
    }
    learner.write(call.partials + Index(worker) * (call.parameters + SUMS), places, rows);
}

KERNEL_OF_BLOCKS(kernel_update, UpdateCall, THREADS, UPDATE_BLOCKS) {
    const int actors = call.actors, block = block_number();
    if (block < actors) update<true, PARAMETERS>(call, ACTOR_PLACES, MEANS, block, actors);
    else update<false, 1>(call, CRITIC_PLACES, 1, block - actors, block_count() - actors);
}
