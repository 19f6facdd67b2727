// Parameters that each replica draws when an episode begins, of environments with a team of agents: single numbers by the
// first agent, arrays by all of them.

using EpisodeParams = Params;

// Those of the episode that comes next, before it begins.
FN void begin_params(Params& p, const ParamBuffers& params, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) {
        const u32 episode = *team.episode + 1;
        Drawn drawn;
        params._draw(drawn, team.replica, team.seed, &episode, i, AGENTS);
        if (i == 0) params._keep(team.replica, drawn);
    }
    p = params.get(team.replica);
}
