// RICE-N (Zhang et al. 2022, arXiv 2208.07004): regions save, mitigate emissions, trade, and may negotiate mitigation
// rates. It follows the authors' program, which differs from their paper in the damages.
//
// An action stage covers five years. With negotiation, steps cycle through three stages: proposals, decisions, actions.

enum Stage : int { ACT, PROPOSE, DECIDE };
enum Choice : int { SAVE, MITIGATE, EXPORT, TARIFFS };  // offsets in an action; from TARIFFS on, per agent

constexpr int BIDS = TARIFFS + AGENTS, PROPOSALS = BIDS + AGENTS, DECISIONS = PROPOSALS + 2 * AGENTS;

constexpr real TENTH = real(0.1), YEARS = 5;

FN int  stage_of(int step) { return NEGOTIATION ? step % 3 : ACT; }

// The number of action stages so far, with the current one.
FN real activities(const World& w) { return real(NEGOTIATION ? w.elapsed / 3 : w.elapsed); }

FN void reset(World& w, const Params& p, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) {
        w.capital[i]           = p.initial_capital[i];
        w.labor[i]             = p.initial_labor[i];
        w.production_factor[i] = p.initial_production_factor[i];
        w.intensity[i]         = p.initial_intensity[i];
        w.capital_depreciation[i] = w.savings[i] = w.mitigation_rate[i] = w.max_export_limit[i] = 0;
        w.mitigation_cost[i] = w.damages[i] = w.abatement_cost[i] = w.utility[i] = w.social_welfare[i] = 0;
        w.consumption[i] = w.current_balance[i] = w.gross_output[i] = w.investment[i] = w.production[i] = 0;
        w.minimum_mitigation_rate[i] = w.last_reward[i] = 0;
        for (int j = 0; j < AGENTS; ++j) {
            w.tariffs(i, j)  = w.imports(i, j) = 0;
            w.promised(i, j) = w.requested(i, j) = w.accepted(i, j) = 0;
        }
        if (i == 0) {
            w.temperature[0]  = p.initial_temperature;
            w.temperature[1]  = p.initial_ocean_temperature;
            w.carbon_mass[0]  = p.initial_carbon_in_air;
            w.carbon_mass[1]  = p.initial_carbon_in_upper_ocean;
            w.carbon_mass[2]  = p.initial_carbon_in_lower_ocean;
            w.exogenous_forcing = w.land_emissions = 0;
        }
    }
}

// Updates the values that depend only on time: backstop price, discount factor, decline of emission intensity.
FN void update_time_trends(World& w, const Params& p) {
    const real k = activities(w) - 1;
    w.price    = p.backstop_price / (1000 * p.cost_exponent) * power(1 - p.backstop_decline, k);
    w.discount = power(1 + p.time_preference, YEARS * (k + 1));
    w.decline  = exp(-p.intensity_decline * power(1 - p.intensity_decline_slowing, YEARS * k) * YEARS);
}

// Sets a region's rates from its action, its production, and its output after climate damages and mitigation costs.
FN void produce(World& w, const Params& p, int i, const Action& action) {
    const real air = w.temperature[0];
    w.savings[i]          = TENTH * real(action[SAVE]);
    w.mitigation_rate[i]  = TENTH * real(action[MITIGATE]);
    w.max_export_limit[i] = TENTH * real(action[EXPORT]);
    w.mitigation_cost[i]  = w.price * w.intensity[i];
    w.damages[i] = 1 / (1 + p.damage_1[i] * air + p.damage_2[i] * power(air, p.damage_3[i]));
    w.abatement_cost[i] = w.mitigation_cost[i] * power(w.mitigation_rate[i], p.cost_exponent);
    w.production[i] = w.production_factor[i] * power(w.capital[i], p.capital_share[i]) *
                      power(w.labor[i] / 1000, 1 - p.capital_share[i]);
    w.gross_output[i]    = w.damages[i] * (1 - w.abatement_cost[i]) * w.production[i];
    w.investment[i]      = w.savings[i] * w.gross_output[i];
    w.current_balance[i] = w.current_balance[i] * (1 + p.balance_interest);
}

// Sets imports, exports and tariffs: output and debts limit what a region imports, its export limit what it exports.
FN void trade(World& w, const Params& p, Team& team, const TeamActions& actions, int regions) {
    FOR_EACH_ELEMENT(i, j, regions, AGENTS) {
        w.imports(i, j) = j == i ? real(0) : TENTH * real(actions[i][BIDS + j]) * w.gross_output[i];
    }
    sum_over(team, w.wanted, regions, AGENTS, [&](int i, int j) { return w.imports(i, j); });
    FOR_EACH_AGENT(i, regions) {
        const real output  = w.gross_output[i];
        const real solvent = 1 + clip(p.debt_factor * w.current_balance[i] / p.initial_capital[i], real(-1), real(0));
        w.bid_share[i]     = (w.wanted[i] > output ? output / w.wanted[i] : real(1)) * solvent;
    }
    sum_over(team, w.exports, regions, AGENTS, [&](int j, int i) { return w.imports(i, j) * w.bid_share[i]; });
    FOR_EACH_AGENT(j, regions) {
        const real demand = w.exports[j], output = w.gross_output[j];
        const real limit  = minimum(w.max_export_limit[j] * output, output - w.investment[j]);
        w.supplied[j]     = demand > limit ? limit / demand : real(1);
        w.exports[j]      = minimum(demand, limit);
    }
    FOR_EACH_ELEMENT(i, j, regions, AGENTS) {
        w.imports(i, j) *= w.bid_share[i] * w.supplied[j];
        w.tariffed(i, j) = square_root(w.imports(i, j) * (1 - w.tariffs(i, j)));
        w.tariffs(i, j)  = TENTH * real(actions[i][TARIFFS + j]);
    }
    sum_over(team, w.imported, regions, AGENTS, [&](int i, int j) { return w.imports(i, j); });
    sum_over(team, w.foreign, regions, AGENTS, [&](int i, int j) { return w.tariffed(i, j); });
}

// Sets a region's consumption, utility, reward and emissions, and advances capital, labor and technology to the next
// action stage.
FN void consume(World& w, const Params& p, int i) {
    const real domestic = maximum(real(0), w.gross_output[i] - w.investment[i] - w.exports[i]);
    const real root     = p.domestic_preference * square_root(domestic) +
                      (1 - p.domestic_preference) / real(AGENTS - 1) * w.foreign[i];
    w.consumption[i] = root * root;
    w.current_balance[i] += YEARS * (w.exports[i] - w.imported[i]);

    const real k = activities(w) - 1, people = w.labor[i] / 1000, risk = 1 - p.risk_aversion;
    const real share = w.consumption[i] / people + 1;
    w.utility[i] = risk == 0 ? people * log(share) : people * (power(share, risk) - 1) / risk;
    w.social_welfare[i] = w.utility[i] / w.discount;
    w.reward[i] = w.last_reward[i] = w.utility[i];

    w.emissions[i] = w.intensity[i] * (1 - w.mitigation_rate[i]) * w.production[i];
    w.capital_depreciation[i] = p.retained_capital;
    w.capital[i] = w.capital_depreciation[i] * w.capital[i] + YEARS * w.investment[i];
    w.labor[i] *= power((1 + p.final_labor[i]) / (1 + w.labor[i]), p.labor_growth[i]);
    w.production_factor[i] *= p.long_run_factor + p.factor_growth[i] * exp(-p.factor_decline[i] * YEARS * k);
    w.intensity[i] *= w.decline;
}

// Advances temperature and carbon mass of air and ocean by an action stage.
FN void update_climate(World& w, const Params& p) {
    const real k = activities(w) - 1;
    w.exogenous_forcing = p.first_forcing + minimum(p.last_forcing - p.first_forcing,
                                                    (p.last_forcing - p.first_forcing) / p.forcing_steps * k);
    w.land_emissions = p.land_emissions_at_first * power(1 - p.land_decline, k) / real(AGENTS);
    const real emitted = w.emitted + real(AGENTS) * w.land_emissions;
    const real air = w.carbon_mass[0], upper = w.carbon_mass[1], lower = w.carbon_mass[2];
    const real warmth = w.temperature[0], depth = w.temperature[1];
    const real forcing = p.forcing_of_doubling * log(air / p.carbon_in_1750) / real(0.6931471805599453) + w.exogenous_forcing;
    w.temperature[0] = p.heat(0, 0) * warmth + p.heat(0, 1) * depth + p.heat_of_forcing * forcing;
    w.temperature[1] = p.heat(1, 0) * warmth + p.heat(1, 1) * depth;
    for (int part = 0; part < 3; ++part) {
        w.carbon_mass[part] = p.carbon(part, 0) * air + p.carbon(part, 1) * upper + p.carbon(part, 2) * lower +
                              (part == 0 ? p.carbon_of_emissions * emitted : real(0));
    }
}

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    const int stage = stage_of(w.elapsed), acting = stage == ACT ? AGENTS : 0;
    const int proposing = stage == PROPOSE ? AGENTS : 0, deciding = stage == DECIDE ? AGENTS : 0;
    FOR_EACH_AGENT(i, acting > 0 ? 1 : 0) update_time_trends(w, p);
    FOR_EACH_AGENT(i, AGENTS) {
        w.last_reward[i] = 0;
        if (acting > 0) produce(w, p, i, actions[i]);
    }
    if constexpr (NEGOTIATION) {
        FOR_EACH_ELEMENT(i, j, proposing, AGENTS) {
            w.promised(i, j)  = TENTH * real(actions[i][PROPOSALS + 2 * j]);
            w.requested(i, j) = TENTH * real(actions[i][PROPOSALS + 2 * j + 1]);
        }
        FOR_EACH_ELEMENT(i, j, deciding, AGENTS) {
            w.accepted(i, j) = j != i && actions[i][DECISIONS + j] == 1;
        }
        maximum_over(team, w.minimum_mitigation_rate, deciding, AGENTS, [&](int i, int j) {
            return maximum(w.accepted(j, i) ? w.promised(i, j) : real(0), w.accepted(i, j) ? w.requested(j, i) : real(0));
        });
    }
    trade(w, p, team, actions, acting);
    FOR_EACH_AGENT(i, acting) consume(w, p, i);
    sum_over(team, w.emitted, acting, [&](int i) { return w.emissions[i]; });
    FOR_EACH_AGENT(i, acting > 0 ? 1 : 0) {
        update_climate(w, p);
        if (activities(w) >= real(ACTIVITIES)) w.terminated = true;
    }
}

FN void look(World&, const Params&, Team&) {}

// Forbids mitigation rates below the minimum that the region has agreed to.
FN void allow(const World& w, const Params&, int i, const Mask& mask) {
    const int min_level = int(10 * w.minimum_mitigation_rate[i] + real(0.5));
    for (int level = 0; level < min_level; ++level) mask[10 * MITIGATE + level] = false;
}

// Whether an element of the action has an effect in the next step's stage.
FN bool active(const World& w, const Params&, int, int j) {
    const int stage = stage_of(w.elapsed + 1);
    return stage == ACT ? j < PROPOSALS : stage == PROPOSE ? j >= PROPOSALS && j < DECISIONS : j >= DECISIONS;
}

FN void observe(const World& w, const Params&, int i, const Row& row) {
    constexpr int OWN = AGENTS, TALKS = OWN + 9 + NEGOTIATION;
    FOR_EACH_COLUMN(j, AGENTS) {
        row[j] = j == i;
        if constexpr (NEGOTIATION) {
            row[TALKS + j]              = float(w.promised(i, j));
            row[TALKS + AGENTS + j]     = float(w.promised(j, i));
            row[TALKS + 2 * AGENTS + j] = float(w.requested(i, j));
            row[TALKS + 3 * AGENTS + j] = float(w.requested(j, i));
            row[TALKS + 4 * AGENTS + j] = w.accepted(i, j);
            row[TALKS + 5 * AGENTS + j] = w.accepted(j, i);
        }
    }
    row[OWN]     = float(w.production_factor[i] / 100);
    row[OWN + 1] = float(w.intensity[i] * 10);
    row[OWN + 2] = float(w.mitigation_cost[i]);
    row[OWN + 3] = float(w.damages[i]);
    row[OWN + 4] = float(w.abatement_cost[i]);
    row[OWN + 5] = float(w.production[i] / 1000);
    row[OWN + 6] = float(w.utility[i]);
    row[OWN + 7] = float(w.social_welfare[i]);
    row[OWN + 8] = float(w.last_reward[i]);
    if (NEGOTIATION) row[OWN + 9] = float(w.minimum_mitigation_rate[i]);
}

FN void observe_shared(const World& w, const Params&, int, const Row& row) {
    constexpr int PUBLIC = 8 + NEGOTIATION, PAIRS = PUBLIC + 10 * AGENTS;
    FOR_EACH_COLUMN(j, AGENTS) {
        row[PUBLIC + j]              = float(w.capital[j] / 10000);
        row[PUBLIC + AGENTS + j]     = float(w.capital_depreciation[j]);
        row[PUBLIC + 2 * AGENTS + j] = float(w.labor[j] / 10000);
        row[PUBLIC + 3 * AGENTS + j] = float(w.gross_output[j] / 1000);
        row[PUBLIC + 4 * AGENTS + j] = float(w.investment[j] / 1000);
        row[PUBLIC + 5 * AGENTS + j] = float(w.consumption[j] / 1000);
        row[PUBLIC + 6 * AGENTS + j] = float(w.savings[j]);
        row[PUBLIC + 7 * AGENTS + j] = float(w.mitigation_rate[j]);
        row[PUBLIC + 8 * AGENTS + j] = float(w.max_export_limit[j]);
        row[PUBLIC + 9 * AGENTS + j] = float(w.current_balance[j] / 1000);
    }
    FOR_EACH_COLUMN(pair, AGENTS * AGENTS) row[PAIRS + pair] = float(w.tariffs[pair] / 100);
    for (int part = 0; part < 2; ++part) row[part] = float(w.temperature[part] / 10);
    for (int part = 0; part < 3; ++part) row[2 + part] = float(w.carbon_mass[part] / 10000);
    row[5] = float(w.exogenous_forcing);
    row[6] = float(w.land_emissions);
    row[7] = float(w.elapsed) / 100.0f;
    if (NEGOTIATION) row[8] = float(stage_of(w.elapsed));
}

FN void measure(World& w, const Params&, Team& team, Metrics& metrics) {
    sum_over(team, metrics.gross_output, AGENTS, [&](int i) { return w.gross_output[i]; });
    FOR_EACH_AGENT(first, 1) metrics.temperature = w.temperature[0];
}
