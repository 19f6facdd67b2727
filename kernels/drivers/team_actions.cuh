// The actions of a team's agents in a step, read role by role, checked and clipped.

// The position of an invalid action for report(): replica, agent and step in one word, clipped to the bits of each.
FN u64 record_position(Index replica, int agent, int step) {
    constexpr int max_agent = 0xffff, max_step = 0xfffff;
    return u64(replica) << 36 | u64(minimum(agent, max_agent)) << 20 | u64(minimum(step, max_step));
}

// The row of an agent in its role's arrays.
FN Element row_of(Element replica, int agent) {
    const int role = role_of(agent);
    return replica * count_of(role) + (agent - first_of(role));
}

// Element j of an agent's action, clipped to its range, NaN as zero; zero if the agent's role has no such element.
// `offence` is set if the element is invalid.
FN auto action_element(const RoleCall (&role)[ROLES], Element replica, int agent, int j, u32& offence) {
    const int       r    = role_of(agent);
    const RoleCall& from = role[r];
    const Element   at   = row_of(replica, agent) * action_size(r) + j;
    if constexpr (INTEGER_ACTIONS) {
        if (j >= action_size(r)) return 0;
        const i64 element = integer_at(from.actions, from.action_kind, at);
        const i64 start   = action_start(r, j);
        const i64 clipped = clip(element, start, start + action_count(r, j) - 1);
        if (clipped != element) offence = ACTION_OUT_OF_RANGE;
        return int(clipped);
    } else {
        if (j >= action_size(r)) return real(0);
        const real element = real_at(from.actions, from.action_kind, at);
        if (element != element) offence = ACTION_NAN;
        return element == element ? element : real(0);
    }
}

// The reason why an agent's action is invalid, or NO_OFFENCE.
FN u32 offence_of(const RoleCall (&role)[ROLES], Element replica, int agent) {
    u32 offence = NO_OFFENCE;
    for (int j = 0; j < action_size(role_of(agent)); ++j) action_element(role, replica, agent, j, offence);
    return offence;
}

#ifndef _long_actions

// Whether a step loads each action at once, together with the agent's other inputs.
FN constexpr bool fetches_actions() { return true; }

// An agent's action, clipped to its range, NaN as zero; `offence` is set if the action is invalid.
FN Action fetch_action(const RoleCall (&role)[ROLES], Element replica, int agent, u32& offence) {
    Action action;
    UNROLL
    for (int j = 0; j < ACTION_SIZE; ++j) action.value[j] = action_element(role, replica, agent, j, offence);
    return action;
}

// The agents' actions in this step, for the rules.
struct TeamActions {
    const World& world;
    FN Action operator[](int agent) const {
        Action action;
        UNROLL
        for (int j = 0; j < ACTION_SIZE; ++j) action.value[j] = world.action[agent * ACTION_SIZE + j];
        return action;
    }
};

constexpr bool READ_BY_BLOCK = false;
template <class Value> FN bool read_actions(const RoleCall (&)[ROLES], const Team&, Value*) { return false; }
template <class Call> FN void report_actions(const Call&, const Team&, const World&) {}

#else  // actions that are too long for registers: read element by element into the World

FN constexpr bool fetches_actions() { return false; }
struct NotFetched {};
FN NotFetched fetch_action(const RoleCall (&)[ROLES], Element, int, u32&) { return {}; }

// Writes an agent's action, clipped to its range, NaN as zero, to `target`; `offence` is set if the action is invalid.
template <class Value>
FN void read_action(const RoleCall (&role)[ROLES], Element replica, int agent, u32& offence, Value* target) {
    for (int j = 0; j < ACTION_SIZE; ++j) target[j] = action_element(role, replica, agent, j, offence);
}

// Unless phases are launches, a replica's threads read its actions together, in coalesced loads.
constexpr bool READ_BY_BLOCK = SCHEDULE != SPREAD;

// Element j of an action, clipped; `invalid` becomes nonzero if it was invalid: no branch, so that loops vectorise.
template <class T> FN auto clipped_action(T element, int role, int j, u32& invalid) {
    if constexpr (INTEGER_ACTIONS) {
        using Wide = decltype(element + 0);  // int, or i64
        const Wide start   = action_start(role, j);
        const Wide clipped = clip(Wide(element), start, Wide(start + action_count(role, j) - 1));
        invalid |= clipped != Wide(element) ? 1u : 0u;
        return int(clipped);
    } else {
        invalid |= element != element ? 1u : 0u;
        return element == element ? real(element) : real(0);
    }
}

// Reads this thread's elements of a role's actions into `target`, if that is not null; returns whether any was invalid.
template <class T, class Value> FN bool read_role(const T* actions, int role, const Team& team, Value* target) {
    const int size = action_size(role), count = count_of(role) * size;
    const T* const source = actions + team.replica * count;
    u32       invalid = 0;
    const int padding = ACTION_SIZE - size;  // elements that only other roles' actions have: zeroed here
    for (int e = team.rank; padding > 0 && target != nullptr && e < count_of(role) * padding; e += team.size)
        target[e / padding * ACTION_SIZE + size + e % padding] = 0;
    if (!ON_GPU) {  // a loop that compilers vectorise
        for (int agent = 0; agent < count_of(role); ++agent) {
            for (int j = 0; j < size; ++j) {
                const auto value = clipped_action(source[agent * size + j], role, j, invalid);
                if (target != nullptr) target[agent * ACTION_SIZE + j] = Value(value);
            }
        }
        return invalid != 0;
    }
    for (int e = team.rank; e < count; e += team.size) {
        const int  agent = e / size, j = e - agent * size;
        const auto value = clipped_action(source[e], role, j, invalid);
        if (target != nullptr) target[agent * ACTION_SIZE + j] = Value(value);
    }
    return invalid != 0;
}

// Reads this thread's elements of all roles' actions into `target`, if not null; returns whether any was invalid.
template <class Value> FN bool read_actions(const RoleCall (&role)[ROLES], const Team& team, Value* target) {
    bool invalid = false;
    if (!team.here) return invalid;
    UNROLL
    for (int r = 0; r < ROLES; ++r) {
        const void* const at = role[r].actions;
        Value* const      to = target == nullptr ? nullptr : target + first_of(r) * ACTION_SIZE;
        if constexpr (!INTEGER_ACTIONS) {
            if (sizeof(real) == sizeof(double) && role[r].action_kind == FLOAT64)
                invalid |= read_role(static_cast<const double*>(at), r, team, to);
            else
                invalid |= read_role(static_cast<const float*>(at), r, team, to);
        } else if (role[r].action_kind == INT32) {
            invalid |= read_role(static_cast<const int*>(at), r, team, to);
        } else if (role[r].action_kind == UINT8) {
            invalid |= read_role(static_cast<const u8*>(at), r, team, to);
        } else {
            invalid |= read_role(static_cast<const i64*>(at), r, team, to);
        }
    }
    return invalid;
}

// Reports the invalid actions of active agents.
template <class Call> FN void report_actions(const Call& call, const Team& team, const World& w) {
    if (AUTORESET != SAME_STEP && w.pending) return;
    for (int i = 0; i < AGENTS; ++i) {
        const u32 offence = w.present[i] ? offence_of(call.role, team.replica, i) : u32(NO_OFFENCE);
        if (offence != NO_OFFENCE)
            report(call.buffers.offence, call.launch, offence,
                   record_position(team.replica, i, call.buffers.state.elapsed[team.replica]));
    }
}

struct TeamActions {
    const World& world;
    FN Action operator[](int agent) const { return {world.action + agent * ACTION_SIZE}; }
};

#endif
