// Elements of actions that mean nothing in this step: masks leave them their first choice, so that a policy's
// probability and entropy know nothing of them.

template <class Call> FN void mask_idle(const World& w, const Params& p, Team& team, const Call& call) {
    FOR_EACH_ELEMENT(i, j, AGENTS, ACTION_SIZE) {
        const int own = role_of(i);
        if (!w.present[i] || j >= action_size(own) || active(w, p, i, j)) continue;
        const Element row   = team.replica * count_of(own) + (i - first_of(own));
        bool* const   first = call.role[own].action_mask + row * choices_of(own) + choices_before(own, j);
        for (int choice = 0; choice < action_count(own, j); ++choice) first[choice] = choice == 0;
    }
}
