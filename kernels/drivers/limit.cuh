// The step at which an episode is truncated: the time limit less the replica's offset (see `stagger`), hidden from
// rules. `staggered` counts the replicas with an offset, so that a step reads no offsets if there are none.
template <class Buffers> FN int limit_of(const Buffers& buffers, u32 staggered, Index replica, int limit) {
    return staggered == 0 ? limit : limit - buffers.offset[replica];
}

// Clears a replica's offset of the time limit, if any, and counts down the replicas with an offset.
template <class Buffers> FN void clear_offset(const Buffers& buffers, u32 staggered, Index replica) {
    if (staggered == 0 || buffers.offset[replica] == 0) return;
    buffers.offset[replica] = 0;
    count_down(buffers.staggered);
}
