// Parameters of teams that stay as they are when an episode begins.

using EpisodeParams = const Params;

FN void begin_params(const Params&, const ParamBuffers&, const Team&) {}
