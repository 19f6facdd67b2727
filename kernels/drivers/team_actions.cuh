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

// The action of an agent. One out of range counts as the nearest, NaN as zero; `offence` says so.
FN Action read_action(const RoleCall (&role)[ROLES], Element replica, int agent, u32& offence) {
    const int       own  = role_of(agent);
    const RoleCall& from = role[own];
    const Element   at   = (replica * count_of(own) + (agent - first_of(own))) * action_size(own);
    Action action;
    UNROLL
    for (int j = 0; j < ACTION_SIZE; ++j) {
        action.value[j] = 0;
        if (j >= action_size(own)) continue;
        if constexpr (WHOLE_ACTIONS) {
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

#else  // too long to be copied: read element by element, and looked at where the World has them

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
        } else if constexpr (WHOLE_ACTIONS) {
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

struct TeamActions {
    const World& world;
    FN Action operator[](int agent) const { return {world.action + agent * ACTION_SIZE}; }
};

#endif
