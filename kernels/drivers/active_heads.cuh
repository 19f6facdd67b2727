// Action masks for elements of actions that have no effect in this step: only their first choice is possible, so that
// they add nothing to a policy's log-probability and entropy.

template <class Call> FN void mask_inactive_heads(const World& w, const Params& p, Team& team, const Call& call) {
    FOR_EACH_ELEMENT(i, j, AGENTS, ACTION_SIZE) {
        const int r = role_of(i);
        if (!w.present[i] || j >= action_size(r) || active(w, p, i, j)) continue;
        const Element row   = team.replica * count_of(r) + (i - first_of(r));
        bool* const   first = call.role[r].action_mask + row * choices_of(r) + choices_before(r, j);
        for (int choice = 0; choice < action_count(r, j); ++choice) first[choice] = choice == 0;
    }
}
