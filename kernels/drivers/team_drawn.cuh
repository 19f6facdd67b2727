// Teams with randomised parameters: each replica draws them at the start of an episode; the first agent draws single
// numbers, all agents together draw arrays.

using EpisodeParams = Params;

// Draws the parameters of the next episode, before it starts.
FN void begin_params(Params& p, const ParamBuffers& params, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) {
        const u32 episode = *team.episode + 1;
        Drawn drawn;
        params._draw(drawn, team.replica, team.seed, &episode, i, AGENTS);
        if (i == 0) params._keep(team.replica, drawn);
    }
    p = params.get(team.replica);
}
