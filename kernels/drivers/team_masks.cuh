// What is possible in the state that is observed, of teams whose rules say so.

// All choices are, but for those that the rules forbid. Who is not present is forbidden none.
template <class Call> FN void mask_actions(const World& w, const Params& p, Team& team, const Call& call) {
    FOR_EACH_AGENT_NO_WAIT(i, AGENTS) {
        const int     own = role_of(i);
        const Element row = team.replica * count_of(own) + (i - first_of(own));
        const Mask    mask(call.role[own].action_mask + row * choices_of(own), choices_of(own));
        for (int choice = 0; choice < choices_of(own); ++choice) mask[choice] = true;
        if (w.present[i]) allow(w, p, i, mask);
    }
}
