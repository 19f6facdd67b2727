// Single-agent environments without metrics.

FN void load_totals(Tile&, int, const Buffers&, Index) {}
FN void store_totals(const Tile&, int, const Buffers&, Index) {}
FN void reset_totals(Tile&, int) {}
template <class Env> FN void add_to_totals(Tile&, const ParamBuffers&, const int (&)[LANES], const Env&) {}
template <class Env> FN void store_metrics_so_far(const StepCall&, const Tile&, const int (&)[LANES], const Env&) {}
FN void store_episode_metrics(const StepCall&, const Tile&, int, Index, Record&) {}
FN void advance_metrics_row(StepCall&, Index) {}
FN void store_rollout_metrics(const RolloutCall&, const Tile&, int, Index) {}
