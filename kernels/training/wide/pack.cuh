// Weights as rowwise.cuh streams them: pieces of lines of LINE bytes, in the order in which they are used.

template <int NET, int STEP> FN void pack(const PackCall& call, int first, int every) {
    constexpr int l = layer_of(STEP), lines = lines_of(NET, STEP), depths = pieces_of(depth_of(NET, STEP)) * LINE_EACH;
    constexpr int columns = l == 0 ? COLUMNS_1 : in_of(NET, l);
    Stored* const to = reinterpret_cast<Stored*>(call.packed + packed_place(NET, STEP));
    for (int e = first; e < lines * depths; e += every) {
        const int  line = e / depths, depth = e % depths;
        const int  out = STEP < LAYERS ? line : depth, in = STEP < LAYERS ? depth : line + (l == 0 ? INPUTS_FROM : 0);
        const bool there = out < out_of(NET, l) && in < in_of(NET, l);
        const float weight = there ? call.flat[weight_at(NET, l) + out * columns + in] : 0.0f;
        const int   place  = (depth / LINE_EACH * lines + line) * LINE_EACH + within_line(line, depth % LINE_EACH);
        to[place]          = Arithmetic::stored(weight);
    }
    if constexpr (STEP + 1 < STEPS) pack<NET, STEP + 1>(call, first, every);
    else if constexpr (NET + 1 < NETS) pack<NET + 1, 0>(call, first, every);
}

KERNEL_OF_BLOCKS(kernel_pack, PackCall, 256, 1) {
    pack<0, 0>(call, block_number() * 256 + thread_rank(), block_count() * 256);
}
