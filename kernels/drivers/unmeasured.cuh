// Metrics of single-agent replicas whose rules measure nothing.

FN void load_totals(Tile&, int, const Buffers&, Index) {}
FN void store_totals(const Tile&, int, const Buffers&, Index) {}
FN void begin_totals(Tile&, int) {}
template <class Env> FN void add_to_totals(Tile&, const ParamBuffers&, const int (&)[LANES], const Env&) {}
template <class Env> FN void tell_metrics(const StepCall&, const Tile&, const int (&)[LANES], const Env&) {}
FN void keep_metrics(const StepCall&, const Tile&, int, Index, Record&) {}
FN void go_on_with_metrics(StepCall&, Index) {}
FN void put_metrics(const RolloutCall&, const Tile&, int, Index) {}
