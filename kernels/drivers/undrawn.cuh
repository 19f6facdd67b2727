// Single-agent environments without randomised parameters.

#define STEP_KERNEL(name, Call) KERNEL(name, Call)

FN constexpr bool draws_ahead() { return true; }

struct NextParams {};
struct DrawNumbers {};

FN DrawNumbers load_numbers(const ParamBuffers&) { return {}; }

FN Params begin_params(const ParamBuffers& params, Index i, const Key&) { return params.get(i); }
FN Params next_params(NextParams&, int, const ParamBuffers& params, const DrawNumbers&, Index i, const Key&) {
    return params.get(i);
}
FN void   store_params(const ParamBuffers&, Index, const NextParams&, int) {}
