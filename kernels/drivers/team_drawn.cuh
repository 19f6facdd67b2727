// Teams with randomised parameters, drawn at the start of an episode: numbers by the first agent, arrays by all agents.

using EpisodeParams = Params;

// Draws and stores the parameters of the active replicas' next episodes, and loads them into `p`.
FN void begin_params(Params& p, const ParamBuffers& params, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) {
        const u32 episode = *team.episode + 1;
        Drawn drawn;
        params._draw(drawn, params._numbers, team.replica, team.seed, &episode, i, AGENTS);
        if (i == 0) params._keep(team.replica, drawn);
    }
    p = params.get(team.replica);
}
