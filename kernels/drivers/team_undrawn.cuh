// Teams without randomised parameters.

using EpisodeParams = const Params;

FN void begin_params(const Params&, const ParamBuffers&, const Team&) {}
