// A loss of the outputs of functions whose derivatives by them are linear, each in its own output: what update.cuh
// goes back from. The outputs are told where they are wanted.

struct FunctionRow { int place, alive; };

FN bool keeps_of(const UpdateCall& call)       { return call.weights != 0; }          // for the gradient of the weights
FN bool reaches_inputs(const UpdateCall& call) { return call.by_inputs != nullptr; }  // on the way back

FN int place_of(const UpdateCall& call, Index number) { return number < call.rows ? int(number) : -1; }

template <int NET> struct LossOfRows {
    static constexpr int OUTS  = outs_of(NET, LAYERS - 1);
    static constexpr u32 ASIDE = 0;
    FunctionRow          sample;

    FN explicit LossOfRows(const UpdateCall&) {}
    FN void fetch(const UpdateCall&, int place) { sample = {place, place >= 0}; }

    template <class Own, class Tile>
    FN void take_back(Own& own, const UpdateCall& call, const FunctionRow&, Index unit, float (&c)[OUTS / 8][4], Tile& kept) {
        for_accumulators<NET, OUTS / 8, out_of(NET, LAYERS - 1)>(own, call.rows, unit, [&](int j, int q, Index place) {
            const float output = c[j][q];
            c[j][q]            = 0;
            if (place < 0) return;
            if (call.outputs != nullptr) call.outputs[place] = output;
            c[j][q] = call.by_outputs[place];
            if (call.curvatures != nullptr) c[j][q] = fma(call.curvatures[place], output, c[j][q]);
        });
        round_once(c);
        own.store(c);
        if (keeps_of(call)) kept.store_rounded(c);
    }
    template <class Own> FN void write(const Own&, float*) {}
};
