// The loss of policies and values: what update.cuh makes derivatives of.

FN constexpr bool keeps_of(const UpdateCall&)       { return true; }   // for the gradient of the weights
FN constexpr bool reaches_inputs(const UpdateCall&) { return false; }  // on the way back

template <int NET> struct LossOfRows {
    static constexpr bool ACTOR = NET == 0, CRITIC = SHARED_TRUNK || NET == 1;
    static constexpr bool BOXES = ACTOR && !DISCRETE;
    static constexpr int  OUTS  = outs_of(NET, LAYERS - 1);
    static constexpr u32  ASIDE = BOXES ? OUTPUTS_BYTES : 0;  // derivatives of a box lie behind its outputs
    Judge                 judge;
    Sample                sample;
    float                 by_log_std[LOG_STDS + !LOG_STDS] = {};

    FN explicit LossOfRows(const UpdateCall& call) : judge(call) {}

    FN void fetch(const UpdateCall& call, int place) {
        sample.place = place;
        fetch_facts(sample, call, ACTOR, CRITIC);
    }

    // Makes derivatives of the outputs: the rows of the way back.
    template <class Own, class Tile>
    FN void take_back(Own& own, const UpdateCall& call, const Sample& of_row, Index, float (&c)[OUTS / 8][4], Tile& kept) {
        constexpr int value_at = ACTOR ? MEANS : 0;
        if constexpr (!BOXES) {
            if (ACTOR) forbid(c, call.action_mask, of_row.place);
            judge_choices<ACTOR, CRITIC>(judge, of_row, c, value_at);
            round_once(c);
            own.store(c);
            kept.store_rounded(c);
        } else {
            if (CRITIC) own.store_values(c, value_at);
            store_means(own, c, call.flat);
            const int    of_warp = own.lane % WARP_ROWS, row = own.warp * WARP_ROWS + of_warp;
            float* const outputs = outputs_of_warp(own) + of_warp * ROW_STRIDE;
            judge.policy(of_row, outputs_of_block(own));
            if (CRITIC) judge.value(of_row, own.values() + of_warp);
            warp_barrier();
            for (int j = own.lane / WARP_ROWS; j < OUTS; j += 2) {  // two threads a row
                const auto by = Arithmetic::stored(j < MEANS ? outputs[j] : CRITIC && j == MEANS ? own.values()[of_warp] : 0.0f);
                *reinterpret_cast<Stored*>(own.rows + ASIDE + row_place(u32(row), u32(j))) = by;
                *kept.at(j, kept.row_slot(row)) = by;
            }
            if (own.lane < WARP_ROWS) {
                UNROLL
                for (int d = 0; d < LOG_STDS; ++d) by_log_std[d] += outputs[MEANS + d];
            }
        }
    }

    template <class Own> FN void write(const Own& own, float* sums) {
        auto& of_warps = reinterpret_cast<float (&)[WARPS][SUMS]>(own.numbers.sums);
        judge.write(sums, of_warps, ACTOR, CRITIC, [] { block_barrier(); });
        block_barrier();
        UNROLL
        for (int d = 0; d < LOG_STDS; ++d) {
            const float sum = summed_over_warp(by_log_std[d]);
            if (own.lane == 0) own.numbers.sums[thread_rank() / WARP][d] = sum;
        }
        block_barrier();
        const int d = thread_rank();
        if (NET == 0 && d < LOG_STDS) {
            float sum = 0;
            for (int w = 0; w < WARPS; ++w) sum += own.numbers.sums[w][d];
            sums[SUMS + d] = sum;
        }
    }
};
