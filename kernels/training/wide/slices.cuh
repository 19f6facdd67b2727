// How the gradients of wide perceptrons' weights are cut among blocks.
//
// A block has 128 rows of one layer's gradient. Of hidden layers the rows are outputs, and of the first layer one part of
// the inputs is columns; of the last layer, which is narrow, the rows are inputs. workers_of(net, l) blocks share the
// samples of each such slice.

constexpr int SLICE = 2 * GROUP_ROWS;

template <int NET, int L> struct Layer {
    static constexpr bool LAST = L == LAYERS - 1;
    static constexpr int  LEFT = LAST ? L : LAYERS + L, RIGHT = LAST ? 2 * LAYERS - 1 : L;  // numbers of what is kept
    static constexpr int  ROWS = kept_lines(NET, LEFT), LINES = kept_lines(NET, RIGHT);
    static constexpr int  PARTS = L == 0 ? INPUT_PARTS : 1, COLUMNS = LINES / PARTS;
    static constexpr bool ONES = LAST || L > 0;  // (the inputs have a line of ones of their own)
    static constexpr int  BIASES = LAST ? COLUMNS : 8;
    static constexpr int  SIZE = SLICE * COLUMNS + (LAST ? COLUMNS : SLICE);  // of a block's part of the sums
};

FN constexpr int slices_of(int net, int l) {
    const int rows = l == LAYERS - 1 ? in_of(net, l) : out_of(net, l);
    return (rows + SLICE - 1) / SLICE * (l == 0 ? INPUT_PARTS : 1);
}

// Where a part of the gradient is found, and by how many blocks: workers_of(net, l) for each of its slices.
struct Found { int first_block; Index first; };
template <int NET, int L> FN constexpr Found found_at() {
    if constexpr (L > 0) {
        constexpr Found before = found_at<NET, L - 1>();
        constexpr int   blocks = slices_of(NET, L - 1) * workers_of(NET, L - 1);
        return {before.first_block + blocks, before.first + Index(blocks) * Layer<NET, L - 1>::SIZE};
    } else if constexpr (NET > 0) {
        constexpr Found before = found_at<NET - 1, LAYERS - 1>();
        constexpr int   blocks = slices_of(NET - 1, LAYERS - 1) * workers_of(NET - 1, LAYERS - 1);
        return {before.first_block + blocks, before.first + Index(blocks) * Layer<NET - 1, LAYERS - 1>::SIZE};
    } else {
        return {0, 0};
    }
}
