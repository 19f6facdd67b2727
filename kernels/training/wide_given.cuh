// Derivatives by the outputs of functions that others found: what wide_update.cuh goes back from.

struct FunctionRow { int place; u8 alive; };

FN int place_of(const UpdateCall& call, Index number) { return number < call.rows ? int(number) : -1; }

template <int NET> struct LossOfRows {
    static constexpr int OUTS  = outs_of(NET, LAYERS - 1);
    static constexpr u32 ASIDE = 0;
    FunctionRow          sample;

    FN explicit LossOfRows(const UpdateCall&) {}
    FN void fetch(const UpdateCall&, int place) { sample = {place, u8(place >= 0)}; }

    template <class Own, class Tile>
    FN void take_back(Own& own, const UpdateCall& call, const FunctionRow&, Index unit, float (&c)[OUTS / 8][4], Tile& kept) {
        for_accumulators<NET, OUTS / 8, out_of(NET, LAYERS - 1)>(own, call.rows, unit, [&](int j, int q, Index place) {
            c[j][q] = place < 0 ? 0.0f : call.by_outputs[place];
        });
        own.store(c);
        kept.store_rows(c);
    }
    template <class Own> FN void write(const Own&, float*) {}
};
