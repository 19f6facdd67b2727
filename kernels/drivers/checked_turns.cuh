// A row of observations that knows its length, in place of `Row`, for builds that find mistakes.
struct Row {
    float* at;
    int    lane;
    int    shared_at = 0, shared = 0;
    int    length = 0x7fffffff;
    FN float& operator[](CheckedIndex index) const {
        const int j = index.within("the row of observations", length);
        return at[j >= shared_at ? j + shared : j];
    }
};

#ifdef TURNS

// Phases as a GPU might run them, for a CPU's build that finds mistakes: turns go from the last to the first, each phase
// is a launch of its own, and of every element it is known which turn of the phase changed it. Rules that keep to what a
// phase may do give the same bits as ever.

struct Turns {
    static constexpr int MOST = 1 << 14;  // elements that are followed in a phase, and a power of two
    static constexpr int NO_TURN = -1;
    struct Seen {
        const void* at;
        const char* name;
        const char* file;
        int         line;
        int         serial;    // of the phase in which all this was seen; otherwise there is nothing here
        int         bytes;
        int         touched;   // the last turn that came here
        int         plain;     // its accesses but those of add() and lower()
        int         writer, adder, reader, other_reader;
        u64         value;     // before this turn
        int         agent;     // whose it is
    };
    Seen        seen[MOST];
    int         touched[MOST];
    int         scalars;
    struct Scalar { const void* at; int bytes; const char* name; } scalar[256];
    int         count, used;
    int         serial;
    int         turn = NO_TURN;
    int         agent;        // whose fields this turn changed
    bool        all;          // the phase has a turn for each agent
    int         only = -1;    // the phase of this launch; -1: all
    int         phase;        // of those begun in it
    const char* file;         // where it stands
    int         line;
};
static Turns turns;

[[noreturn]] SELDOM void tell_phase_and_stop(const char* file, int line, const char* what, const char* name, int one, int other) {
    dprintf(2, "%s:%d: phase: %s '%s' (turns %d and %d)\n", file, line, what, name, one, other);
    _exit(97);
}

SELDOM u64 bytes_of(const void* at, int bytes) {
    u64 value = 0;
    __builtin_memcpy(&value, at, u64(bytes));
    return value;
}

// What is known of an element in this phase; null where there is no room for more.
SELDOM Turns::Seen* seen_at(const void* at, int bytes, const char* name) {
    u32 place = u32((u64(at) * 0x9e3779b97f4a7c15ull) >> 40) % Turns::MOST;
    while (turns.seen[place].serial == turns.serial && turns.seen[place].at != at) place = (place + 1) % Turns::MOST;
    Turns::Seen& found = turns.seen[place];
    constexpr int NO = Turns::NO_TURN;
    if (found.serial != turns.serial) {
        if (turns.used > Turns::MOST / 2) return nullptr;
        ++turns.used;
        found = {at, name, turns.file, turns.line, turns.serial, bytes, NO, 0, NO, NO, NO, NO, 0, NO};
    }
    if (found.touched != turns.turn) {
        found.touched = turns.turn;
        found.plain   = 0;
        found.value   = bytes_of(at, bytes);
        turns.touched[turns.count++] = int(place);
    }
    return &found;
}

template <class T> FN void accessed(const T* at, const CheckedIndex& index, const char* name, int each) {
    if (turns.turn == Turns::NO_TURN) return;
    Turns::Seen* const found = seen_at(at, int(sizeof(T)), name);
    if (found == nullptr) return;
    found->file = index.file;
    found->line = index.line;
    if (each != 0) found->agent = int(index.at) / each;
    ++found->plain;
}

// A field of the replica: whether a turn changed it is seen at the turn's end.
template <class T> FN void watch(const T* at, const char* name) {
    if (turns.scalars < 256) turns.scalar[turns.scalars++] = {at, int(sizeof(T)), name};
}

SELDOM void begin_turn(int turn) {
    turns.turn  = turn;
    turns.agent = turns.all ? turn : Turns::NO_TURN;
    turns.count = 0;
    for (int k = 0; k < turns.scalars; ++k) seen_at(turns.scalar[k].at, turns.scalar[k].bytes, turns.scalar[k].name);
}

[[noreturn]] SELDOM void tell_agents_and_stop(const Turns::Seen& seen, int own) {
    dprintf(2, "%s:%d: phase: the turn of agent %d writes '%s' of agent %d\n", seen.file, seen.line, own, seen.name, seen.agent);
    _exit(97);
}

SELDOM void end_turn() {
    constexpr int NO = Turns::NO_TURN;
    for (int k = 0; k < turns.count; ++k) {
        Turns::Seen& s = turns.seen[turns.touched[k]];
        const int  me      = turns.turn;
        const bool changed = s.value != bytes_of(s.at, s.bytes);
        const bool reads   = s.plain > 0 && !changed;
        if (changed && s.writer != NO && s.writer != me) tell_phase_and_stop(s.file, s.line, "several turns write", s.name, s.writer, me);
        if (changed && s.adder != NO && s.adder != me) tell_phase_and_stop(s.file, s.line, "turns add to, and one writes", s.name, s.adder, me);
        if (s.adder == me && s.writer != NO && s.writer != me) tell_phase_and_stop(s.file, s.line, "turns add to, and one writes", s.name, s.writer, me);
#ifdef STRICT_TURNS
        const int by = s.writer != NO && s.writer != me ? s.writer : s.adder;
        if (reads && by != NO && by != me) tell_phase_and_stop(s.file, s.line, "a turn reads what another changes,", s.name, me, by);
        const int reader = s.reader != NO && s.reader != me ? s.reader : s.other_reader;
        if ((changed || s.adder == me) && reader != NO && reader != me)
            tell_phase_and_stop(s.file, s.line, "a turn reads what another changes,", s.name, reader, me);
#endif
        if (changed && s.agent != NO) {
            if (turns.agent != NO && turns.agent != s.agent) tell_agents_and_stop(s, turns.agent);
            turns.agent = s.agent;
        }
        if (changed) s.writer = me;
        if (reads && s.reader != me) (s.reader == NO ? s.reader : s.other_reader) = me;
    }
    turns.turn = NO;
}

FN void demand_end() {
    if (turns.turn != Turns::NO_TURN) tell_phase_and_stop(turns.file, turns.line, "break or return, or another phase, within", "a turn", turns.turn, turns.turn);
}

FN void begin_phase(bool all, const char* file, int line) {
    demand_end();
    turns.all = all;
    ++turns.serial;
    turns.used = 0;
    turns.file = file, turns.line = line;
}

// The first turn of a phase, the last agent's; -1: this launch has none in it.
FN int first_turn(Team& team, int n, const char* over, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    begin_phase(__builtin_strcmp(over, "AGENTS") == 0, file, line);
    const bool now = turns.only == -1 || turns.phase == turns.only;
    ++turns.phase;
    return team.begin() != Team::NONE && now ? n - 1 : -1;
}

FN bool goes_on(int i) {
    if (turns.turn != Turns::NO_TURN) end_turn();
    if (i < 0) return false;
    begin_turn(i);
    return true;
}

#undef FOR_EACH_AGENT
#undef FOR_EACH_AGENT_NO_WAIT
#define FOR_EACH_AGENT(i, n) for (int i = first_turn(team, (n), #n); goes_on(i); --i)
#define FOR_EACH_AGENT_NO_WAIT(i, n) for (int i = first_turn(team, (n), #n); goes_on(i); --i)

template <class Keep, class Put>
FN void gather_in_turn(Team& team, int& count, int n, int room, const Keep& keep, const Put& put,
                       const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    if (first_turn(team, 1, "1", file, line) < 0) return;
    int found = 0;
    for (int i = 0; i < n; ++i)
        if (keep(i)) put(found++, i);
    for (int k = found; k < room; ++k) put(k, -1);
    count = found;
}

// What several turns may do to an integer.
template <class Change> FN void changed_by_all(int& value, const Change& change) {
    Turns::Seen* const found = turns.turn == Turns::NO_TURN ? nullptr : seen_at(&value, int(sizeof value), "");
    if (found != nullptr && found->plain > 0) --found->plain;
    const bool before = found != nullptr && found->value == bytes_of(&value, int(sizeof value));
    change(value);
    if (found == nullptr) return;
    if (before) found->value = bytes_of(&value, int(sizeof value));
    found->adder = turns.turn;
}
FN void add_in_turn(int& sum, int value) {
    changed_by_all(sum, [&](int& each) { add(each, value); });
}
FN void lower_in_turn(int& least, int value) {
    changed_by_all(least, [&](int& each) { lower(each, value); });
}

SELDOM void tell_if_others(const char* name, int phases, int others) {
    if (phases == others) return;
    dprintf(2, "%s:%d: phase: %s goes through %d phases, and at other times through %d\n", turns.file, turns.line, name, phases, others);
    _exit(97);
}

// Goes through a function of the rules once for each of its phases, and all that stands between them every time.
template <class Call> FN void launch_phases(const char* name, const Call& call) {
    turns.only = -2, turns.phase = 0;  // to count them
    call();
    const int phases = turns.phase;
    static int ever  = phases;  // of each function its own
    tell_if_others(name, ever, phases);
    for (turns.only = 0; turns.only < phases; ++turns.only) {
        turns.phase = 0;
        call();
        demand_end();
        tell_if_others(name, phases, turns.phase);
    }
    turns.only = -1;
}

#define gather(...) gather_in_turn(__VA_ARGS__)
#define add(...) add_in_turn(__VA_ARGS__)
#define lower(...) lower_in_turn(__VA_ARGS__)

#endif
