// What is possible in the state that is observed, of teams whose rules say so.

// Threads that are all at hand fill a replica's masks together.
constexpr bool FILLED_TOGETHER = SCHEDULE != SPREAD && TEAMS == 1;

// All choices are, but for those that the rules forbid. Who is not present is forbidden none.
template <class Call> FN void mask_actions(const World& w, const Params& p, Team& team, const Call& call) {
    if (FILLED_TOGETHER && team.active) {
        for (int own = 0; own < ROLES; ++own) {
            const int entries = count_of(own) * choices_of(own);
            set_marks(call.role[own].action_mask + team.replica * entries, entries, team.rank, team.size);
        }
        team.sync();
    }
    FOR_EACH_AGENT_NO_WAIT(i, AGENTS) {
        const int     own = role_of(i);
        const Element row = team.replica * count_of(own) + (i - first_of(own));
        const Mask    mask(call.role[own].action_mask + row * choices_of(own), choices_of(own));
        for (int choice = 0; choice < choices_of(own) && !FILLED_TOGETHER; ++choice) mask[choice] = true;
        if (w.present[i]) allow(w, p, i, mask);
    }
    if (ACTIVE_HEADS) team.sync();
}
