// The gradient of the loss of a minibatch by all weights of actor and critic, in one launch and a sum.
//
// Some of the blocks have the actor, the others the critic. A block takes tiles of samples, and at the end
// writes its sums; step.cuh adds those of all blocks, in a fixed order.

template <class Role>
FN void update(const Role& role, SampleRow& sample, const UpdateCall& call, int place, int worker, int workers) {
    const Places places = role.acts ? ACTOR_PLACES : CRITIC_PLACES;
    const int    rows   = role.acts ? MEANS : 1;
    fetch_facts(sample, call, role.acts, !role.acts);
    Learner<Role> learner(role, call, places, rows);
    for (Index tile = worker; tile * TILE < call.rows; tile += workers) {
        learner.learn(sample, (tile + 2 * workers) * TILE + place);
    }
    learner.write(call.partials + Index(worker) * (call.parameters + SUMS), places, rows);
}

KERNEL_OF_BLOCKS(kernel_update, UpdateCall, THREADS, UPDATE_BLOCKS) {
    const int  actors = call.actors, block = block_number();
    const bool acts   = block < actors;
    const int  worker = acts ? block : block - actors, workers = acts ? actors : block_count() - actors;
    const int  place  = thread_rank() / WARP * WARP_ROWS + warp_lane() % WARP_ROWS;
    SampleRow  sample;
    sample.place = place_of(call, Index(worker) * TILE + place);
    sample.next  = place_of(call, Index(worker + workers) * TILE + place);
    fetch_inputs(sample, call, warp_lane());
    if constexpr (ALIKE) update(Either{acts}, sample, call, place, worker, workers);
    else if (acts) update(Always<true>(), sample, call, place, worker, workers);
    else update(Always<false>(), sample, call, place, worker, workers);
}
