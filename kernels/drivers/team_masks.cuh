// Action masks of teams whose rules define allow().

// Whether the threads of a block fill a replica's masks together.
constexpr bool FILLED_BY_BLOCK = SCHEDULE != SPREAD && TEAMS == 1;

// Writes all agents' masks: true, except where allow() sets false for a present agent.
template <class Call> FN void mask_actions(const World& w, const Params& p, Team& team, const Call& call) {
    if (FILLED_BY_BLOCK && team.active) {
        for (int r = 0; r < ROLES; ++r) {
            const int entries = count_of(r) * choices_of(r);
            set_true(call.role[r].action_mask + team.replica * entries, entries, team.rank, team.size);
        }
        team.sync();
    }
    FOR_EACH_AGENT_NO_WAIT(i, AGENTS) {
        const int  r = role_of(i);
        const Mask mask(call.role[r].action_mask + row_of(team.replica, i) * choices_of(r), choices_of(r));
        for (int choice = 0; choice < choices_of(r) && !FILLED_BY_BLOCK; ++choice) mask[choice] = true;
        if (w.present[i]) allow(w, p, i, mask);
    }
    if (ACTIVE_HEADS) team.sync();
}
