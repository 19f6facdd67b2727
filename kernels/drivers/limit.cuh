// The step at which an episode is truncated: the time limit, or before it by its replica's offset. How many replicas have
// an offset stands in one word, so that a step reads no offsets where there are none. Rules know nothing of them.

template <class Buffers> FN int limit_of(const Buffers& buffers, u32 staggered, Index replica, int limit) {
    return staggered == 0 ? limit : limit - buffers.offset[replica];
}

// The episodes that follow are whole ones.
template <class Buffers> FN void forget_offset(const Buffers& buffers, u32 staggered, Index replica) {
    if (staggered == 0 || buffers.offset[replica] == 0) return;
    buffers.offset[replica] = 0;
    count_down(buffers.staggered);
}
