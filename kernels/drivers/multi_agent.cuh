// The driver of environments with a team of agents and one step per launch: load, advance, store results, restart and
// observe, store the state. Like the rules, each function here is a sequence of phases.

constexpr int TERMINATED = 1, TRUNCATED = 2;

// Calls the rules' look(), and writes the action masks and the agents' rows of observations.
template <class Call>
FN void observe_team(World& w, const Params& p, Team& team, const Call& call, Rows rows, char* local) {
    look(w, p, team);
    if constexpr (MASKED) mask_actions(w, p, team, call);
    if constexpr (ACTIVE_HEADS) mask_inactive_heads(w, p, team, call);
    if constexpr (SEPARATE_SHARED) observe_apart(w, p, team, call, rows);
    if constexpr (ROW_WRITING == BY_BLOCK) observe_by_block(w, p, team, call, rows, local);
    else if constexpr (ROW_WRITING == BY_WARP) observe_by_warps(w, p, team, call, rows, local);
    else observe_directly(w, p, team, call, rows);
}

// Starts the next episode in active replicas: draws parameters, resets the driver's fields, calls the rules' reset().
template <class Call> FN void restart(World& w, EpisodeParams& p, Team& team, const Call& call) {
    begin_params(p, call.params, team);
    FOR_EACH_AGENT(i, AGENTS) {
        w.in_game[i] = true;
        w.present[i] = true;
        if (STATISTICS) call.buffers.running_return[team.replica * AGENTS + i] = 0;
        if (i == 0) {
            w.elapsed = 0;
            call.buffers.episodes[team.replica] += 1;
            reset_totals(w);
        }
    }
    reset(w, p, team);
}

// Zeroes the final observations that the previous step wrote, also shared ones in their own array.
template <class Call> FN void clear_final(Team& team, const Call& call) {
    FOR_EACH_AGENT(i, AGENTS) {
        if (!call.buffers.finished[team.replica]) continue;
        const int r = role_of(i);
        float* const row = call.role[r].final_obs + row_of(team.replica, i) * row_size(r);
        for (int j = 0; j < row_size(r); ++j) row[j] = 0;
        if constexpr (SEPARATE_SHARED) {
            const int size = shared_features_of(r);
            for (int j = 0; j < size && i == first_of(r); ++j) call.role[r].final_shared[team.replica * size + j] = 0;
        }
    }
}

// Loads the agents' state and actions into the World, counts the step in `elapsed`, and reports invalid actions. A
// template, as without statistics a World has no returns, and only long actions have a read_action().
template <class W, class Call> FN void load_step(W& w, Team& team, const Call& call) {
    const Buffers& buffers = call.buffers;
    const bool wrong_actions = READ_BY_BLOCK && read_actions(call.role, team, &w.action[0]);
    FOR_EACH_AGENT(i, AGENTS) {
        // All loads come first, to wait for memory only once.
        u32           offence = NO_OFFENCE;
        const auto    action  = fetch_action(call.role, team.replica, i, offence);
        const Fetched fetched(i, buffers, team.replica);
        const real    running = STATISTICS ? buffers.running_return[team.replica * AGENTS + i] : real(0);
        const bool    ended   = AUTORESET != SAME_STEP && buffers.ended[team.replica] != 0;
        w.put(i, fetched);
        if constexpr (STATISTICS) w._running_return[i] = running;
        w.reward[i]  = 0;
        w.present[i] = w.in_game[i] || (AUTORESET == DISABLED && ended && buffers.just_left[team.replica * AGENTS + i]);
        if constexpr (fetches_actions()) {
            UNROLL
            for (int j = 0; j < ACTION_SIZE; ++j) w.action[i * ACTION_SIZE + j] = action.value[j];
        } else if (!READ_BY_BLOCK) {
            read_action(call.role, team.replica, i, offence, w.action + i * ACTION_SIZE);
        }
        if (offence != NO_OFFENCE && w.present[i] && !ended)
            report(buffers.offence, call.launch, offence,
                   record_position(team.replica, i, buffers.state.elapsed[team.replica]));
        if (i == 0) {
            w.pending    = ended;
            w.terminated = false;
            if (AUTORESET == DISABLED && ended && call.report_frozen)
                report(buffers.offence, call.launch, EPISODE_OVER, record_position(team.replica, 0, w.elapsed));
            if (SCHEDULE == BLOCK) w.elapsed += ended ? 0 : 1;
        }
    }
    if (wrong_actions) report_actions(call, team, w);
    // Without BLOCK the World is no copy of the buffers: reports above need the `elapsed` before this step.
    if (SCHEDULE != BLOCK) FOR_EACH_AGENT(first, 1) w.elapsed += w.pending ? 0 : 1;
}

// Whether this step ends the episode; `late`: the time limit is reached.
FN bool episode_ends(const World& w, bool late) {
    return !(AUTORESET != SAME_STEP && w.pending) && (w.terminated || late);
}

// Writes the agents' rewards, terminations and truncations of a step, and return and length if it ends the episode;
// sets w.finished. `late`: the time limit is reached. A template, as without statistics a World has no returns.
template <class W> FN void store_results(W& w, Team& team, const StepCall& call, bool late) {
    const Buffers& buffers = call.buffers;
    FOR_EACH_AGENT_NO_WAIT(i, AGENTS) {
        const u8   before     = AUTORESET == DISABLED ? buffers.ended[team.replica] : u8(0);
        const bool pending    = AUTORESET != SAME_STEP && w.pending;
        const bool terminated = pending ? AUTORESET == DISABLED && (!w.in_game[i] || (before & TERMINATED) != 0)
                                          : !w.in_game[i] || w.terminated;
        const bool truncated  = w.in_game[i] && (pending ? (before & TRUNCATED) != 0 : late);
        const bool finished   = episode_ends(w, late);
        const real reward     = w.present[i] && !pending ? w.reward[i] : real(0);
        const RoleCall& to  = call.role[role_of(i)];
        const Element   row = row_of(team.replica, i);
        [[maybe_unused]] const Element at = team.replica * AGENTS + i;
        to.rewards[row]      = reward;
        to.terminations[row] = terminated;
        to.truncations[row]  = truncated;
        if constexpr (STATISTICS) {
            const real sum = w._running_return[i] + reward;
            buffers.running_return[at] = finished && AUTORESET == SAME_STEP ? real(0) : sum;
            if (w.present[i] && !w.in_game[i] && !pending) buffers.left_at[at] = w.elapsed;
            if (finished) {
                const int length = w.present[i] ? w.elapsed : buffers.left_at[at];
                buffers.episode_return[at] = sum;
                buffers.episode_length[at] = length;
                if (to.episode_return != nullptr) to.episode_return[row] = sum;
                if (to.episode_length != nullptr) to.episode_length[row] = length;
            }
        }
        if (i == 0) {
            w.finished = finished;
            if (!pending) {
                add_to_totals(w);
                store_metrics_so_far(w, team, buffers);
            }
        }
    }
}

// Starts the next episodes, and writes observations, masks and, in SameStep mode, final observations. `finished`: the
// episode ends in this step, and SameStep starts the next; `pending`: it ended in the previous one, for NextStep.
FN void restart_and_observe(World& w, EpisodeParams& p, Team& team, const StepCall& call, bool finished, bool pending,
                            char* local) {
    // before restart() writes fields that rules read; in SameStep mode, observe_team() comes between
    if (AUTORESET != SAME_STEP) team.sync();
    const bool ending = AUTORESET == SAME_STEP && team.any(team.here && finished);  // some replica of the block
    if (AUTORESET == NEXT_STEP && team.any(team.here && pending)) {
        team.active = team.here && pending;
        restart(w, p, team, call);
        team.active = team.here;
    }
    // in SameStep mode, if an episode ends: its final rows first, then the first rows of the next episode
    Rows rows = ending ? LAST_ROWS : ALL_ROWS;
    for (;;) {
        observe_team(w, p, team, call, rows, local);
        if (rows != LAST_ROWS) break;
        team.active = team.here && finished;
        finish_metrics(w, p, team);
        restart(w, p, team, call);
        rows = FIRST_ROWS;
    }
    if (METRICS > 0 && AUTORESET != SAME_STEP && team.any(team.here && finished)) {
        team.active = team.here && finished;
        finish_metrics(w, p, team);
    }
    team.active = team.here;
}

// Writes the World into the buffers, and the flags and metrics of an episode that ended. `late`: the time limit is
// reached; `staggered`: number of replicas whose time limit has an offset.
FN void store_step(World& w, Team& team, const StepCall& call, bool late, u32 staggered) {
    const Buffers& buffers = call.buffers;
    w.store_arrays(team, buffers);
    FOR_EACH_AGENT_NO_WAIT(i, AGENTS) {
        w.store(i, buffers, team.replica);
        buffers.just_left[team.replica * AGENTS + i] = w.present[i] && !w.in_game[i];
        if (i == 0) {
            w.store_shared(buffers, team.replica);
            buffers.finished[team.replica] = w.finished;
            if (w.finished) store_metrics(w, team, call);
            const int flags = (w.terminated ? TERMINATED : 0) | (late ? TRUNCATED : 0);
            if (AUTORESET == NEXT_STEP || (AUTORESET == DISABLED && !w.pending))
                buffers.ended[team.replica] = u8(w.finished ? flags : 0);
            if (AUTORESET == SAME_STEP ? w.finished : AUTORESET == NEXT_STEP && w.pending)
                clear_offset(buffers, staggered, team.replica);
        }
    }
}

// Writes the number of phases, in a launch with phase -1, which the host runs first if each phase is a launch.
template <class Call> FN void report_phase_count(const Team& team, const Call& call) {
    if (SCHEDULE == SPREAD && call.phase < 0 && team.block == 0 && thread_rank() == 0) *call.phases = team.phase;
}

// Takes a step of all replicas; if each phase is a launch, only one phase of it.
KERNEL_OF_BLOCKS(kernel_step, StepCall, THREADS, BLOCKS) {
    const Buffers&    buffers = call.buffers;
    const ScratchMemory local(LOCAL_BYTES);
    FOR_EACH_BLOCK(block) {
        Team              team(block, buffers, call.phase);
        World             w(buffers, team, local.at);
        EpisodeParams     p = call.params.get(team.replica);
        const TeamActions actions{w};
        const u32         staggered = load_count(buffers.staggered);

        if (AUTORESET == SAME_STEP && call.clear_final) clear_final(team, call);
        w.put_arrays(team, buffers);
        load_step(w, team, call);
        const bool late    = w.elapsed >= limit_of(buffers, staggered, team.replica, call.limit);
        const bool pending = AUTORESET != SAME_STEP && w.pending;
        team.last_step     = w.elapsed >= call.limit;
        team.active        = team.here && !pending;
        step(w, p, team, actions);
        measure_step(w, p, team);
        team.active = team.here;
        store_results(w, team, call, late);
        const bool finished = SCHEDULE == SPREAD ? w.finished : episode_ends(w, late);
        restart_and_observe(w, p, team, call, finished, pending, local.at);
        store_step(w, team, call, late, staggered);
        report_phase_count(team, call);
        wait_for_copy_reads();
    }
}

// Reports a step's invalid actions, and actions after an episode's end if `report_frozen`, before any state changes.
KERNEL_OF_BLOCKS(kernel_inspect, StepCall, THREADS, BLOCKS) {
    const Buffers& buffers = call.buffers;
    FOR_EACH_BLOCK(block) {
        Team team(block, buffers, call.phase);
        // On a CPU, first a check of all actions without branches.
        const bool valid = !ON_GPU && READ_BY_BLOCK && !(AUTORESET == DISABLED && call.report_frozen) &&
                           !read_actions(call.role, team, static_cast<real*>(nullptr));
        FOR_EACH_AGENT(i, valid ? 0 : AGENTS) {
            const u8  ended = AUTORESET == SAME_STEP ? u8(0) : buffers.ended[team.replica];
            const int step  = buffers.state.elapsed[team.replica];
            u32 offence = NO_OFFENCE;
            if (ended != 0) {
                if (AUTORESET == DISABLED && call.report_frozen) offence = EPISODE_OVER;
            } else if (buffers.state.in_game[team.replica * AGENTS + i]) {
                offence = offence_of(call.role, team.replica, i);
            }
            if (offence != NO_OFFENCE)
                report(buffers.offence, call.launch, offence, record_position(team.replica, i, step));
        }
        report_phase_count(team, call);
    }
}

// Loads the agents' state into the World, and writes new seeds of the `chosen` replicas if the reset has seeds.
FN void load_for_reset(World& w, Team& team, const ResetCall& call, bool chosen) {
    const Buffers& buffers = call.buffers;
    FOR_EACH_AGENT(i, AGENTS) {
        w.put(i, Fetched(i, buffers, team.replica));
        w.present[i] = w.in_game[i] || buffers.just_left[team.replica * AGENTS + i];
        if (i == 0) {
            const bool reseed = call.reseed == nullptr ? call.reseed_all != 0 : call.reseed[team.replica] != 0;
            if (chosen && reseed) {
                buffers.seeds[team.replica] =
                    call.reseed == nullptr ? call.first_seed + u64(team.replica) : call.new_seeds[team.replica];
                buffers.episodes[team.replica] = NEVER_BEGUN;
            }
        }
    }
}

// Starts new episodes in the masked replicas (all without a mask; none with observe_only), and observes all replicas.
KERNEL_OF_BLOCKS(kernel_reset, ResetCall, THREADS, BLOCKS) {
    const Buffers&    buffers = call.buffers;
    const ScratchMemory local(LOCAL_BYTES);
    FOR_EACH_BLOCK(block) {
        Team          team(block, buffers, call.phase);
        World         w(buffers, team, local.at);
        EpisodeParams p = call.params.get(team.replica);

        const bool chosen = team.here && !call.observe_only && (call.mask == nullptr || call.mask[team.replica]);
        // The seed of replica 0, new or old, draws the numbers that all replicas share.
        const bool first_chosen = !call.observe_only && (call.mask == nullptr || call.mask[0]);
        const bool reseeded     = first_chosen && (call.reseed == nullptr ? call.reseed_all != 0 : call.reseed[0] != 0);
        if (reseeded) team.shared_seed = call.reseed == nullptr ? &call.first_seed : call.new_seeds;

        w.put_arrays(team, buffers);
        load_for_reset(w, team, call, chosen);
        if (team.any(chosen)) {
            team.active = chosen;
            restart(w, p, team, call);
            team.active = team.here;
        }
        observe_team(w, p, team, call, ALL_ROWS, local.at);
        w.store_arrays(team, buffers);
        FOR_EACH_AGENT(i, AGENTS) {
            w.store(i, buffers, team.replica);
            buffers.just_left[team.replica * AGENTS + i] = w.present[i] && !w.in_game[i];
            if (i == 0) {
                w.store_shared(buffers, team.replica);
                if (chosen) {
                    buffers.ended[team.replica] = 0;
                    clear_offset(buffers, load_count(buffers.staggered), team.replica);
                }
                if (team.replica == 0 && reseeded) *buffers.shared_seed = *team.shared_seed;
            }
        }
        report_phase_count(team, call);
        wait_for_copy_reads();
    }
}
