// Reductions as phases of a team's rules: sum, maximum and minimum.
//
//   sum_over(team, w.total, n, [&](int k) { return w.given[k]; });               one result over numbers 0 to n-1
//   sum_over(team, w.wanted, rows, n, [&](int i, int k) { return w.asked(k, i); });  one result per row
//
// maximum_over and minimum_over have the same arguments, with n at least 1. sum_over<double> adds in float64. The order
// depends only on n, so devices and schedules change no bit: lane k % 32 adds number k after its earlier ones, then the
// upper half of the lanes is added to the lower half, and so on.

constexpr int FOLD_LANES = 32;

struct SumFold {
    template <class T> FN static T of(T a, T b) { return a + b; }
    template <class T, class Get> FN static T identity(const Get&) { return 0; }  // for lanes without a number
};
struct MaxFold {
    template <class T> FN static T of(T a, T b) { return maximum(a, b); }
    template <class T, class Get> FN static T identity(const Get& get) { return T(get(0)); }
};
struct MinFold {
    template <class T> FN static T of(T a, T b) { return minimum(a, b); }
    template <class T, class Get> FN static T identity(const Get& get) { return T(get(0)); }
};

// The distance of the first fold of n numbers: half of min(n, 32), rounded up to a power of two; 0 for n = 1.
FN int first_fold(int n) {
    int distance = FOLD_LANES / 2;
    while (distance >= n && distance > 0) distance /= 2;
    return distance;
}

// Reduces get(0) to get(n - 1) by one thread, in the order of a warp.
template <class Fold, class T, class Get> FN T fold_serially(int n, const Get& get) {
    T lanes[FOLD_LANES];
    for (int lane = 0; lane < FOLD_LANES; ++lane)
        lanes[lane] = lane < n ? T(get(lane)) : Fold::template identity<T>(get);
    for (int start = FOLD_LANES; start < n; start += FOLD_LANES)
        for (int lane = 0; lane < minimum(FOLD_LANES, n - start); ++lane)
            lanes[lane] = Fold::of(lanes[lane], T(get(start + lane)));
    for (int distance = first_fold(n); distance > 0; distance /= 2)
        for (int lane = 0; lane < distance; ++lane) lanes[lane] = Fold::of(lanes[lane], lanes[lane + distance]);
    return lanes[0];
}

// Reduces get(0) to get(n - 1) by a warp; all its threads call it, and only thread 0 gets the result.
template <class Fold, class T, class Get> FN T fold_by_warp(int n, int lane, const Get& get) {
    T sum = lane < n ? T(get(lane)) : Fold::template identity<T>(get);
    for (int k = lane + FOLD_LANES; k < n; k += FOLD_LANES) sum = Fold::of(sum, T(get(k)));
    for (int distance = first_fold(n); distance > 0; distance /= 2) sum = Fold::of(sum, shuffle_down(sum, distance));
    return sum;
}

template <class Requested, class Result> struct SumType { using type = Requested; };
template <class Result> struct SumType<void, Result> { using type = Result; };
template <class T> struct Plain { using type = T; };
template <class T> struct Plain<T&> { using type = T; };

// A phase: results[i] becomes the reduction of get(i, 0) to get(i, n - 1), for i < rows, in the type Wide unless void.
template <class Fold, class Wide, class Results, class Get>
FN void fold_rows(Team& team, const Results& results, int rows, int n, const Get& get) {
    using Result = typename Plain<decltype(results[0])>::type;
    using T      = typename SumType<Wide, Result>::type;
    if constexpr (!ON_GPU || (SCHEDULE == BLOCK && TEAMS > 1)) {
        FOR_EACH_AGENT(i, rows) results[i] = Result(fold_serially<Fold, T>(n, [&](int k) { return get(i, k); }));
    } else {
        const int first = team.begin();
        for (int i = first / WARP; first != Team::NONE && i < rows; i += team.size / WARP) {
            const T sum = fold_by_warp<Fold, T>(n, thread_rank() % WARP, [&](int k) { return get(i, k); });
            if (thread_rank() % WARP == 0) results[i] = Result(sum);
        }
        team.sync();
    }
}

#define FOLD_PHASE(name, Fold)                                                                                        \
    template <class Wide = void, class Results, class Get>                                                            \
    FN void name(Team& team, const Results& results, int rows, int n, const Get& get) {                               \
        fold_rows<Fold, Wide>(team, results, rows, n, get);                                                           \
    }                                                                                                                 \
    template <class Wide = void, class Result, class Get>                                                             \
    FN void name(Team& team, Result& result, int n, const Get& get) {                                                 \
        fold_rows<Fold, Wide>(team, &result, 1, n, [&](int, int k) { return get(k); });                               \
    }
FOLD_PHASE(sum_over, SumFold)
FOLD_PHASE(maximum_over, MaxFold)
FOLD_PHASE(minimum_over, MinFold)
#undef FOLD_PHASE
