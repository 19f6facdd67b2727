// Rows on their way forth through all layers of a wide perceptron.

struct PassingRows : Passing {
    static constexpr bool SHARES = sizeof(Stored) == 2;  // (in TF32 acting is 7 % slower so, where updates are quicker)
    const Inputs<GroupTile<8, DEPTH>>& inputs;
    FN explicit PassingRows(const Inputs<GroupTile<8, DEPTH>>& inputs_) : inputs(inputs_) {}
    template <int FROM, class Own> FN void load(Own& own) const { own.template load_inputs<false, FROM>(inputs); }
};

template <int NET> using Own = Rowwise<Weights<NET, STEPS_FORTH>>;

// One of so many workers runs its tiles: a row's observation is where `find` says, or nowhere if that is below 0.
template <int NET, class Call, class Find, class Use>
FN void run_wide(const Call& call, int worker, int workers, const Find& find, u32* largest, const u8* alive,
                 const Use& use) {
    auto&       memory = WideMemory::of_block();
    const Scale scale  = {call.mean, call.inverse, call.limit};
    const Index tiles  = (call.rows + GROUP_TILE - 1) / GROUP_TILE;
    const auto  weights = begin_network<NET, STEPS_FORTH>(memory, call, scale, turns_of(worker, workers, tiles));
    Own<NET>    own(memory, weights);
    const auto  place_of = [&](Index row) { return row < call.rows ? find(row) : -1; };
    const Index begin   = own.group * GROUP_ROWS + own.warp * WARP_ROWS + own.lane % WARP_ROWS;
    int         place   = place_of(worker * Index(GROUP_TILE) + begin);
    for (Index tile = worker; tile < tiles; tile += workers) {
        const Index row    = tile * GROUP_TILE + begin;
        const int   counts = place >= 0 && (alive == nullptr || alive[place] != 0), now = place;
        const Inputs<GroupTile<8, DEPTH>> inputs = {call.observations, now, scale, nullptr, {largest, counts}};
        own.template load_inputs<false, 0>(inputs);
        place = place_of(row + workers * Index(GROUP_TILE));
        publish();
        group_barrier();
        go_forth<NET, 0>(own, PassingRows(inputs), [&](Outputs<NET>& c) {
            use(own, c, row, now);
            group_barrier();
        });
    }
}
