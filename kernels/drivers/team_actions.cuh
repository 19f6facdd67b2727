// What the agents of a team do in a step: read role by role, checked.

// Where an invalid action was, in order of replicas, then agents; what does not fit is cut to the greatest that does.
FN u64 place_of(Index replica, int agent, int step) {
    constexpr int most_agents = 0xffff, most_steps = 0xfffff;
    return u64(replica) << 36 | u64(minimum(agent, most_agents)) << 20 | u64(minimum(step, most_steps));
}

// Element `at` of actions of any element type.
FN i64 whole_at(const void* actions, int kind, Element at) {
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

// Whether an action is fetched as a whole, with what else is read of its agent.
FN constexpr bool fetches_actions() { return true; }

// The action of an agent. One out of range counts as the nearest, NaN as zero; `offence` says so.
FN Action fetch_action(const RoleCall (&role)[ROLES], Element replica, int agent, u32& offence) {
    const int       own  = role_of(agent);
    const RoleCall& from = role[own];
    const Element   at   = (replica * count_of(own) + (agent - first_of(own))) * action_size(own);
    Action action;
    UNROLL
    for (int j = 0; j < ACTION_SIZE; ++j) {
        action.value[j] = 0;
        if (j >= action_size(own)) continue;
        if constexpr (INTEGER_ACTIONS) {
            const i64 given  = whole_at(from.actions, from.action_kind, at + j);
            const i64 least  = action_start(own, j);
            const i64 inside = clip(given, least, least + action_count(own, j) - 1);
            if (inside != given) offence = ACTION_OUT_OF_RANGE;
            action.value[j] = int(inside);
        } else {
            const real given = real_at(from.actions, from.action_kind, at + j);
            if (given != given) offence = ACTION_NAN;
            action.value[j] = given == given ? given : real(0);
        }
    }
    return action;
}

// What is wrong with the action of an agent.
FN u32 offence_of(const RoleCall (&role)[ROLES], Element replica, int agent) {
    u32 offence = NO_OFFENCE;
    fetch_action(role, replica, agent, offence);
    return offence;
}

// What the agents do in this step.
struct TeamActions {
    const World& world;
    FN Action operator[](int agent) const {
        Action action;
        UNROLL
        for (int j = 0; j < ACTION_SIZE; ++j) action.value[j] = world.action[agent * ACTION_SIZE + j];
        return action;
    }
};

constexpr bool READ_TOGETHER = false;
template <class Value> FN bool read_actions(const RoleCall (&)[ROLES], const Team&, Value*) { return false; }
template <class Call> FN void report_actions(const Call&, const Team&, const World&) {}

#else  // too long to be copied: read element by element, and looked at where the World has them

FN constexpr bool fetches_actions() { return false; }
struct NotFetched {};
FN NotFetched fetch_action(const RoleCall (&)[ROLES], Element, int, u32&) { return {}; }

// Its elements go to `kept`, where that is not null.
template <class Value>
FN void read_action(const RoleCall (&role)[ROLES], Element replica, int agent, u32& offence, Value* kept) {
    const int       own  = role_of(agent);
    const RoleCall& from = role[own];
    const Element   at   = (replica * count_of(own) + (agent - first_of(own))) * action_size(own);
    for (int j = 0; j < ACTION_SIZE; ++j) {
        Value value = 0;
        if (j >= action_size(own)) {
            // an action of another role, which is longer
        } else if constexpr (INTEGER_ACTIONS) {
            const i64 given  = whole_at(from.actions, from.action_kind, at + j);
            const i64 least  = action_start(own, j);
            const i64 inside = clip(given, least, least + action_count(own, j) - 1);
            if (inside != given) offence = ACTION_OUT_OF_RANGE;
            value = int(inside);
        } else {
            const real given = real_at(from.actions, from.action_kind, at + j);
            if (given != given) offence = ACTION_NAN;
            value = given == given ? given : real(0);
        }
        if (kept != nullptr) kept[j] = value;
    }
}

FN u32 offence_of(const RoleCall (&role)[ROLES], Element replica, int agent) {
    u32 offence = NO_OFFENCE;
    read_action(role, replica, agent, offence, static_cast<real*>(nullptr));
    return offence;
}

// Where a replica's threads are all at hand, neighbouring threads read neighbouring elements.
constexpr bool READ_TOGETHER = SCHEDULE != SPREAD;

// Element j of an agent's action, made valid; notes whether it was not, in bits, which compilers vectorise.
template <class Given> FN auto made_valid(Given given, int role, int j, u32& wrong) {
    if constexpr (INTEGER_ACTIONS) {
        using Wide = decltype(given + 0);  // int, or i64
        const Wide least = action_start(role, j), inside = clip(Wide(given), least, Wide(least + action_count(role, j) - 1));
        wrong |= inside != Wide(given) ? 1u : 0u;
        return int(inside);
    } else {
        wrong |= given != given ? 1u : 0u;
        return given == given ? real(given) : real(0);
    }
}

// One role's actions, this thread's elements of them, to `kept` if it is not null; whether any was invalid.
template <class Given, class Value> FN bool read_role(const Given* actions, int role, const Team& team, Value* kept) {
    const int size = action_size(role), count = count_of(role) * size;
    const Given* const from = actions + team.replica * count;
    u32       wrong = 0;
    const int more = ACTION_SIZE - size;  // elements that only another role's actions have: 0 here
    for (int e = team.rank; more > 0 && kept != nullptr && e < count_of(role) * more; e += team.size)
        kept[e / more * ACTION_SIZE + size + e % more] = 0;
    if (!ON_GPU) {  // so that compilers vectorise it
        for (int agent = 0; agent < count_of(role); ++agent) {
            for (int j = 0; j < size; ++j) {
                const auto value = made_valid(from[agent * size + j], role, j, wrong);
                if (kept != nullptr) kept[agent * ACTION_SIZE + j] = Value(value);
            }
        }
        return wrong != 0;
    }
    for (int e = team.rank; e < count; e += team.size) {
        const int  agent = e / size, j = e - agent * size;
        const auto value = made_valid(from[e], role, j, wrong);
        if (kept != nullptr) kept[agent * ACTION_SIZE + j] = Value(value);
    }
    return wrong != 0;
}

template <class Value> FN bool read_actions(const RoleCall (&role)[ROLES], const Team& team, Value* kept) {
    bool wrong = false;
    if (!team.here) return wrong;
    UNROLL
    for (int own = 0; own < ROLES; ++own) {
        const void* const at = role[own].actions;
        Value* const      to = kept == nullptr ? nullptr : kept + first_of(own) * ACTION_SIZE;
        if constexpr (!INTEGER_ACTIONS) {
            if (sizeof(real) == sizeof(double) && role[own].action_kind == FLOAT64)
                wrong |= read_role(static_cast<const double*>(at), own, team, to);
            else
                wrong |= read_role(static_cast<const float*>(at), own, team, to);
        } else if (role[own].action_kind == INT32) {
            wrong |= read_role(static_cast<const int*>(at), own, team, to);
        } else if (role[own].action_kind == UINT8) {
            wrong |= read_role(static_cast<const u8*>(at), own, team, to);
        } else {
            wrong |= read_role(static_cast<const i64*>(at), own, team, to);
        }
    }
    return wrong;
}

// Puts invalid actions on record, of agents that take part.
template <class Call> FN void report_actions(const Call& call, const Team& team, const World& w) {
    if (AUTORESET != SAME_STEP && w.pending) return;
    for (int i = 0; i < AGENTS; ++i) {
        const u32 offence = w.present[i] ? offence_of(call.role, team.replica, i) : u32(NO_OFFENCE);
        if (offence != NO_OFFENCE)
            report(call.buffers.offence, call.launch, offence, place_of(team.replica, i, call.buffers.state.elapsed[team.replica]));
    }
}

struct TeamActions {
    const World& world;
    FN Action operator[](int agent) const { return {world.action + agent * ACTION_SIZE}; }
};

#endif
