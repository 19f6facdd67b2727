// A tile of samples forth and back through wide perceptrons: its rows lie in shared memory, and weights stream through a ring.

template <int NET> using LearningRows = Rowwise<Weights<NET, STEPS>>;

template <int NET> FN LearningRows<NET> begin_rows(const UpdateCall& call, const Scale& scale, u32 tiles) {
    auto&      memory = WideMemory::of_block();
    const bool last   = BY_INPUTS == 0 || reaches_inputs(call);
    return LearningRows<NET>(memory, begin_network<NET, STEPS>(memory, call, scale, tiles, last));
}

template <int NET> struct KeepingRows : Keeping<NET, UpdateCall> {
    static constexpr bool           SHARES = true;
    const Inputs<KeptTile<NET, 0>>& inputs;

    FN KeepingRows(const Keeping<NET, UpdateCall>& keeping, const Inputs<KeptTile<NET, 0>>& inputs_)
        : Keeping<NET, UpdateCall>(keeping), inputs(inputs_) {}
    template <int FROM, class Own> FN void load(Own& own) const { own.template load_inputs<true, FROM>(inputs); }
};

template <int NET, class Own, class Call> FN void find_by_inputs(Own& own, const Call& call, Index unit) {
    constexpr int N = padded(BY_INPUTS, 16) / 8;
    float         c[N][4] = {};
    own.template multiply<outs_of(NET, 0)>(c);
    for_accumulators<NET, N, BY_INPUTS>(own, call.rows, unit, [&](int j, int q, Index place) {
        if (place >= 0) call.by_inputs[place] = c[j][q];
    });
    group_barrier();
}

// From the derivatives by a layer's sums, which are the rows, to those by the sums of the layer before, and so on.
template <int NET, int L, class Own, class Tile> FN void go_back(Own& own, const Tile& forth) {
    constexpr int N = in_of(NET, L) / 8, FIRST = alike_from(NET, L - 1);
    constexpr u32 ASIDE = L == LAYERS - 1 ? LossOfRows<NET>::ASIDE : 0;
    ROLLED
    for (int ahead = L - 1 - FIRST; ahead >= 0; --ahead) {  // to layer FIRST + ahead
        float c[N][4] = {};
        chain_layer<NET, FIRST>(c, own, forth, ahead, [&](float (&sums)[N][4]) {
            const bool first = ahead == L - 1 - FIRST;
            own.template multiply<outs_of(NET, L)>(sums, !first, first ? ASIDE : 0);
        });
        group_barrier();  // all products with the rows are done
        if (FIRST + ahead == 0 && (BY_INPUTS == 0 || !reaches_inputs(forth.call))) return;
        own.store(c);
        publish();
        group_barrier();
    }
    if constexpr (FIRST > 0) go_back<NET, FIRST>(own, forth);
    else if constexpr (BY_INPUTS > 0) find_by_inputs<NET>(own, forth.call, forth.unit);
}

// The samples at `place`, one for each of a warp's rows; `go_on()` fetches what is known ahead, `take_back(c, kept)` makes
// derivatives of the outputs, and rows of them.
template <int NET, class GoOn, class TakeBack>
FN void learn_tile(LearningRows<NET>& own, const UpdateCall& call, const Scale& scale, Index unit, int place,
                   const GoOn& go_on, const TakeBack& take_back) {
    float inverses[LAYERS][2] = {};
    u32   slopes[LAYERS][SLOPE_WORDS] = {};
    const Inputs<KeptTile<NET, 0>> inputs = {
        call.observations, place, scale, keeps_of(call) ? &kept_tile<NET, 0>(call, unit) : nullptr, {nullptr, 0}};
    const KeepingRows<NET> tile({call, unit, inverses, slopes}, inputs);
    own.template load_inputs<true, 0>(inputs);
    go_on();
    publish();
    group_barrier();
    go_forth<NET, 0>(own, tile, [&](Outputs<NET>& c) { take_back(c, kept_tile<NET, 2 * LAYERS - 1>(call, unit)); });
    publish();
    group_barrier();
    go_back<NET, LAYERS - 1>(own, tile);
}
