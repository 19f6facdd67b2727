// The actions of a team's agents in a step, read role by role, checked and clipped.

// The position of an invalid action for report(): replica, agent and step in one word, clipped to the bits of each.
FN u64 record_position(Index replica, int agent, int step) {
    constexpr int max_agent = 0xffff, max_step = 0xfffff;
    return u64(replica) << 36 | u64(minimum(agent, max_agent)) << 20 | u64(minimum(step, max_step));
}

// Element `at` of an array of actions of any dtype.
FN i64 integer_at(const void* actions, int kind, Element at) {
    switch (kind) {
        case INT32: return static_cast<const int*>(actions)[at];
        case UINT8: return static_cast<const u8*>(actions)[at];
        default:    return static_cast<const i64*>(actions)[at];
    }
}
FN real real_at(const void* actions, int kind, Element at) {
    if constexpr (sizeof(real) == sizeof(double)) {
        if (kind == FLOAT64) return static_cast<const double*>(actions)[at];
    }
    return static_cast<const float*>(actions)[at];
}

#ifndef _long_actions

// Whether a step loads each action at once, together with the agent's other inputs.
FN constexpr bool fetches_actions() { return true; }

// An agent's action, clipped to its range, NaN as zero; `offence` receives what was wrong.
FN Action fetch_action(const RoleCall (&role)[ROLES], Element replica, int agent, u32& offence) {
    const int       r    = role_of(agent);
    const RoleCall& from = role[r];
    const Element   at   = (replica * count_of(r) + (agent - first_of(r))) * action_size(r);
    Action action;
    UNROLL
    for (int j = 0; j < ACTION_SIZE; ++j) {
        action.value[j] = 0;
        if (j >= action_size(r)) continue;
        if constexpr (INTEGER_ACTIONS) {
            const i64 element  = integer_at(from.actions, from.action_kind, at + j);
            const i64 start  = action_start(r, j);
            const i64 clipped = clip(element, start, start + action_count(r, j) - 1);
            if (clipped != element) offence = ACTION_OUT_OF_RANGE;
            action.value[j] = int(clipped);
        } else {
            const real element = real_at(from.actions, from.action_kind, at + j);
            if (element != element) offence = ACTION_NAN;
            action.value[j] = element == element ? element : real(0);
        }
    }
    return action;
}

// The reason why an agent's action is invalid, or NO_OFFENCE.
FN u32 offence_of(const RoleCall (&role)[ROLES], Element replica, int agent) {
    u32 offence = NO_OFFENCE;
    fetch_action(role, replica, agent, offence);
    return offence;
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

// Reads an agent's action into `target`, if that is not null.
template <class Value>
FN void read_action(const RoleCall (&role)[ROLES], Element replica, int agent, u32& offence, Value* target) {
    const int       r    = role_of(agent);
    const RoleCall& from = role[r];
    const Element   at   = (replica * count_of(r) + (agent - first_of(r))) * action_size(r);
    for (int j = 0; j < ACTION_SIZE; ++j) {
        Value value = 0;
        if (j >= action_size(r)) {
            // an element that only other roles have
        } else if constexpr (INTEGER_ACTIONS) {
            const i64 element  = integer_at(from.actions, from.action_kind, at + j);
            const i64 start  = action_start(r, j);
            const i64 clipped = clip(element, start, start + action_count(r, j) - 1);
            if (clipped != element) offence = ACTION_OUT_OF_RANGE;
            value = int(clipped);
        } else {
            const real element = real_at(from.actions, from.action_kind, at + j);
            if (element != element) offence = ACTION_NAN;
            value = element == element ? element : real(0);
        }
        if (target != nullptr) target[j] = value;
    }
}

FN u32 offence_of(const RoleCall (&role)[ROLES], Element replica, int agent) {
    u32 offence = NO_OFFENCE;
    read_action(role, replica, agent, offence, static_cast<real*>(nullptr));
    return offence;
}

// Unless phases are launches, a replica's threads read its actions together: neighbouring threads take neighbouring
// elements.
constexpr bool READ_BY_BLOCK = SCHEDULE != SPREAD;

// Element j of an action, clipped; `invalid` becomes nonzero if it was invalid, by bit operations that compilers
// vectorise.
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
