// Parameters of single-agent environments that stay as they are when an episode begins.

#define STEP_KERNEL(name, Call) KERNEL(name, Call)

FN constexpr bool ahead() { return true; }

struct SpareParams {};

FN Params begin_params(const ParamBuffers& params, Index i, const Key&) { return params.get(i); }
FN Params spare_params(SpareParams&, int, const ParamBuffers& params, Index i, const Key&) { return params.get(i); }
FN void   keep_params(const ParamBuffers&, Index, const SpareParams&, int) {}
