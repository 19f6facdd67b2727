// COVID-19 and economy (Trott et al. 2021, arXiv 2108.02904): governors choose how strictly they close their states, a
// planner the subsidies; a step is a day. For research on two-level policies, not for policy making.

constexpr int GOVERNORS = count_of(GOVERNOR), THE_PLANNER = GOVERNORS;

constexpr int LAG = 29, FILTERS = 5, WINDOW = 600;  // days from a level to its effect; days in unemployment's window

enum Total : int { DIED, GIVEN, INCOME };

constexpr real LEVELS = 10, SUBSIDIES = 20, DAYS = 365, BILLION = real(1e9);

// The softplus function, the integral of the logistic function, for unemployment.
FN real softplus(real x) { return x > 20 ? x : log1p(exp(x)); }

FN void reset(World& w, const Params& p, Team& team) {
    FOR_EACH_AGENT(i, GOVERNORS) {
        w.susceptible[i] = p.first_susceptible[i];
        w.infected[i]    = p.first_infected[i];
        w.recovered[i]   = p.first_recovered[i];
        w.vaccinated[i]  = p.first_vaccinated[i];
        w.unemployed[i]  = p.first_unemployed[i];
        w.deaths[i]      = p.mortality * w.recovered[i];
        w.stringency[i]  = p.policy(p.policy.size(0) - 1, i);
        w.income[i]      = 0;
        w.free_from[i]   = 0;
        for (int k = 0; k < FILTERS; ++k) w.memory(i, k) = p.first_memory(i, k);
        for (int day = 1 - LAG; day <= 0; ++day) w.levels(i, (day + LAG) % LAG) = p.policy(p.policy.size(0) - 1 + day, i);
        if (i == 0) w.subsidy = 0;
    }
}

// Advances a state's health numbers and deaths by a day, by the stringency LAG days ago; `delivers`: vaccines arrive.
FN void update_health(World& w, const Params& p, int i, bool delivers) {
    const real people  = p.population[i], healthy = w.susceptible[i], ill = w.infected[i];
    const real rate    = p.infection[i] + p.infection_slope[i] * w.past[i];
    const real doses   = delivers ? round_down(real(p.vaccine_interval) * people / 1000000 * p.vaccines_per_million) : real(0);
    const real share   = minimum(real(1), doses / (healthy + real(1e-10)));
    const real treated = minimum(doses, healthy);
    const real infections = rate * (healthy / people) * ill * (1 - share);
    const real recoveries = ill * p.recovery;
    w.susceptible[i] = maximum(real(0), healthy - infections - treated);
    w.infected[i]    = maximum(real(0), ill + infections - recoveries);
    w.recovered[i]   = maximum(real(0), w.recovered[i] + recoveries + treated);
    w.vaccinated[i]  = maximum(real(0), w.vaccinated[i] + treated);
    const real before = w.deaths[i];
    w.deaths[i]       = p.mortality * (w.recovered[i] - w.vaccinated[i]);
    w.died[i]         = w.deaths[i] - before;
}

// Sets laid_off, a weighted sum of filters over the changes of stringency in the last WINDOW days; `change`: today's.
FN void update_unemployment(World& w, const Params& p, int i, real change) {
    const int  dropped    = p.policy.size(0) - 1 + w.elapsed - WINDOW;  // the day that leaves the window
    const real old_change = dropped < 1 ? real(0) : real(p.policy(dropped, i)) - real(p.policy(dropped - 1, i));
    real       sum        = 0;
    for (int k = 0; k < FILTERS; ++k) {
        real& filter = w.memory(i, k);
        filter       = filter * p.fading[k] + change - p.faded[k] * old_change;
        sum += p.weights(i, k) * filter;
    }
    w.laid_off[i] = sum;
}

// The utility per day if each day's consumption is `share` of a maximum year's.
FN real utility(const Params& p, real share) {
    const real year = clip(DAYS * share, real(0.1), real(3)), risk = 1 - p.risk_aversion;
    return (1 + (risk == 0 ? log(year) : (power(year, risk) - 1) / risk)) / DAYS;
}

FN real normalised(real value, real low, real high) { return (value - low) / (high - low + real(1e-10)); }

// The weighted mean of health and economy; `priority` scales the odds of health's weight.
FN real weighted_mean(real health, real economy, real weight, real priority) {
    const real odds = priority * weight / (1 - weight), share = odds / (1 + odds);
    return share * health + (1 - share) * economy;
}

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, 1)
        if ((w.elapsed - 1) % p.subsidy_interval == 0) w.subsidy = int(actions[THE_PLANNER]);
    FOR_EACH_AGENT(i, GOVERNORS) {
        const int level = int(actions[i]), before = w.stringency[i], slot = w.elapsed % LAG;
        w.past[i]       = w.levels(i, slot);
        if (level != 0) w.stringency[i] = u8(level);
        w.levels(i, slot) = w.stringency[i];
        if (w.elapsed == w.free_from[i] + 1) w.free_from[i] += level == 0 ? 1 : p.cooldown;
        update_unemployment(w, p, i, real(w.stringency[i]) - real(before));
    }
    const bool delivers = w.elapsed >= p.first_vaccines && w.elapsed % p.vaccine_interval == 0;
    // Short phases, which a CPU's compiler vectorises over states.
    FOR_EACH_AGENT(i, GOVERNORS) update_health(w, p, i, delivers);
    FOR_EACH_AGENT(i, GOVERNORS) w.unemployed[i] = (softplus(w.laid_off[i]) + p.baseline[i]) * p.population[i] / 100;
    FOR_EACH_AGENT(i, GOVERNORS) {
        const real people = p.population[i];
        const real fit    = people - p.too_ill_to_work * w.infected[i] - w.deaths[i];
        const real able   = p.working_share * fit - w.unemployed[i];
        const real year   = DAYS * p.max_income[i];
        w.given[i]  = real(w.subsidy) / SUBSIDIES * people * p.max_subsidy / DAYS;
        w.income[i] = maximum(real(0), able) * p.worker_income + w.given[i];
        const real health  = normalised(-w.died[i] * p.value_of_life / year, p.min_health[i], p.max_health[i]);
        const real economy = normalised(utility(p, w.income[i] / year), p.min_economy[i], p.max_economy[i]);
        w.reward[i] = weighted_mean(health, economy, p.health_weight[i], p.health_priority);
    }
    sum_over(team, w.totals, 3, GOVERNORS, [&](int k, int s) {
        return k == DIED ? w.died[s] : k == GIVEN ? w.given[s] : w.income[s];
    });
    FOR_EACH_AGENT(i, AGENTS) {
        if (i != THE_PLANNER) continue;
        const real year    = DAYS * p.max_total_income;
        const real loss    = -w.totals[DIED] * p.value_of_life / year;
        const real health  = normalised(loss, p.planner_norms[0], p.planner_norms[1]);
        const real spent   = (1 + p.interest) * w.totals[GIVEN];
        const real share   = (w.totals[INCOME] - spent) / year;
        const real economy = normalised(utility(p, share), p.planner_norms[2], p.planner_norms[3]);
        w.reward[i] = weighted_mean(health, economy, p.planner_norms[4], p.health_priority_planner);
    }
}

// Leaves only level 0 to a governor during its cooldown, and to the planner between its decisions.
FN void allow(const World& w, const Params& p, int i, const Mask& mask) {
    const bool open = i == THE_PLANNER ? w.elapsed % p.subsidy_interval == 0 : w.elapsed >= w.free_from[i];
    if (open) return;
    for (int level = 1; level < choices_of(role_of(i)); ++level) mask[level] = false;
}

// The feature of the days until the next delivery of vaccines: a fraction of their interval; until the first delivery,
// at most 1, and divided by the interval again.
FN float vaccine_countdown(const World& w, const Params& p) {
    const int interval = p.vaccine_interval, tomorrow = w.elapsed + 1;
    const int first    = (p.first_vaccines + interval - 1) / interval * interval;
    if (tomorrow <= first) return minimum(1.0f, float(first - tomorrow) / float(interval)) / float(interval);
    return float(interval - tomorrow % interval) / float(interval);
}

// Computes each state's features and the calendar's features, into the World.
FN void look(World& w, const Params& p, Team& team) {
    const int next = (w.elapsed + 1) % LAG;
    FOR_EACH_AGENT(i, GOVERNORS) {
        const real share = 1 / p.population[i];
        w.seen(0, i)     = w.susceptible[i] * share;
        w.seen(1, i)     = w.infected[i] * share;
        w.seen(2, i)     = w.recovered[i] * share;
        w.seen(3, i)     = w.deaths[i] * share;
        w.seen(4, i)     = w.vaccinated[i] * share;
        w.seen(5, i)     = w.unemployed[i] * share;
        w.seen(6, i)     = w.income[i] / p.max_income[i];
        w.seen(7, i)     = real(w.levels(i, next)) / LEVELS;
        w.seen(8, i)     = real(w.stringency[i]) / LEVELS;
        if (i > 0) continue;
        w.time      = float(w.elapsed) / float(EPISODE_LENGTH);
        w.subsidies = float(p.subsidy_interval - w.elapsed % p.subsidy_interval) / float(p.subsidy_interval);
        w.money     = float(w.subsidy) / float(SUBSIDIES);
        w.vaccines  = vaccine_countdown(w, p);
    }
}

// The planner observes the features of all states, a governor the features of its state.
FN void observe(const World& w, const Params&, int i, const Row& row) {
    int at;  // the column of `subsidies`; money and vaccines follow
    if (i == THE_PLANNER) {
        FOR_EACH_COLUMN(s, GOVERNORS) {
            for (int k = 0; k < 8; ++k) row[k * GOVERNORS + s] = float(w.seen(k, s));
            row[8 * GOVERNORS + 1 + s] = float(w.seen(8, s));
        }
        row[8 * GOVERNORS] = float(w.time);
        at = 9 * GOVERNORS + 1;
    } else {
        FOR_EACH_COLUMN(s, GOVERNORS) row[s] = s == i;
        FOR_EACH_COLUMN(k, 8) row[GOVERNORS + k] = float(w.seen(k, i));
        row[GOVERNORS + 8] = float(w.time);
        row[GOVERNORS + 9] = float(w.seen(8, i));
        at = GOVERNORS + 10;
    }
    row[at]     = float(w.subsidies);
    row[at + 1] = float(w.money);
    row[at + 2] = float(w.vaccines);
}

FN void measure(World& w, const Params&, Team& team, Metrics& metrics) {
    FOR_EACH_AGENT(first, 1) {
        metrics.deaths    = w.totals[DIED];
        metrics.income    = w.totals[INCOME] / BILLION;
        metrics.subsidies = w.totals[GIVEN] / BILLION;
    }
}
