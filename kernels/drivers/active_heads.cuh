// Action masks for elements of actions that have no effect in the next step: only their first choice is possible, so
// that they add nothing to a policy's log-probability and entropy.

// Masks all choices but the first, in elements of present agents' actions for which the rules' active() is false.
template <class Call> FN void mask_inactive_heads(const World& w, const Params& p, Team& team, const Call& call) {
    FOR_EACH_ELEMENT(i, j, AGENTS, ACTION_SIZE) {
        const int r = role_of(i);
        if (!w.present[i] || j >= action_size(r) || active(w, p, i, j)) continue;
        bool* const first = call.role[r].action_mask + row_of(team.replica, i) * choices_of(r) + choices_before(r, j);
        for (int choice = 0; choice < action_count(r, j); ++choice) first[choice] = choice == 0;
    }
}
