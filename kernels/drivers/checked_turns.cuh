// Debug builds: bounds-checked rows of observations, and a check that the iterations of each phase of a team's rules do
// not depend on one another.

// A row of observations with bounds checks, in place of team.cuh's.
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

// A CPU build that finds dependences between the turns (iterations) of a phase, which a GPU runs in parallel. Turns run
// from the last to the first, each phase is a launch, and a hash table records which turns read, write and add to each
// element. Correct rules give the same bits as in any other build. Errors are printed, and end the process.

struct Turns {
    static constexpr int MAX_ELEMENTS = 1 << 14;  // slots of the hash table, a power of two
    static constexpr int NO_TURN = -1;
    struct Accesses {
        const void* at;
        const char* name;
        const char* file;
        int         line;
        int         serial;    // of the phase; an entry of another phase is free
        int         bytes;
        int         last_turn; // the last turn that accessed the element
        int         plain;     // its number of accesses other than add() and lower()
        int         writer, adder, reader, other_reader;  // turns
        u64         value;     // before this turn
        int         agent;     // the agent that the element belongs to
    };
    Accesses    elements[MAX_ELEMENTS];
    int         touched[MAX_ELEMENTS];  // slots of the elements that this turn accessed
    int         scalars;
    struct Scalar { const void* at; int bytes; const char* name; } scalar[256];
    int         count, used;  // lengths of `touched`; used slots
    int         serial;       // number of phases so far
    int         turn = NO_TURN;
    int         agent;        // the agent whose fields this turn changed
    bool        all;          // whether turn i is agent i's
    bool        single;       // whether the phase has one turn, which may write fields of all agents
    int         only = -1;    // the phase that this launch runs; -1: all; -2: none
    int         phase;        // number of phases started in this launch
    const char* file;         // position of the phase
    int         line;
};
static Turns turns;

[[noreturn]] NOINLINE void report_phase_and_exit(const char* file, int line, const char* what, const char* name,
                                                 int one, int other) {
    dprintf(2, "%s:%d: phase: %s '%s' (iterations %d and %d)\n", file, line, what, name, one, other);
    _exit(97);
}

NOINLINE u64 bytes_of(const void* at, int bytes) {
    u64 value = 0;
    __builtin_memcpy(&value, at, u64(bytes));
    return value;
}

// The accesses to an element in this phase; null if the table is full.
NOINLINE Turns::Accesses* accesses_of(const void* at, int bytes, const char* name) {
    u32 slot = u32((u64(at) * 0x9e3779b97f4a7c15ull) >> 40) % Turns::MAX_ELEMENTS;
    while (turns.elements[slot].serial == turns.serial && turns.elements[slot].at != at)
        slot = (slot + 1) % Turns::MAX_ELEMENTS;
    Turns::Accesses& element = turns.elements[slot];
    constexpr int NO = Turns::NO_TURN;
    if (element.serial != turns.serial) {
        if (turns.used > Turns::MAX_ELEMENTS / 2) return nullptr;
        ++turns.used;
        element = {at, name, turns.file, turns.line, turns.serial, bytes, NO, 0, NO, NO, NO, NO, 0, NO};
    }
    if (element.last_turn != turns.turn) {
        element.last_turn = turns.turn;
        element.plain     = 0;
        element.value     = bytes_of(at, bytes);
        turns.touched[turns.count++] = int(slot);
    }
    return &element;
}

// Records an access of the current turn to an element; `each`: elements per agent, 0 if not per agent.
template <class T> FN void accessed(const T* at, const CheckedIndex& index, const char* name, int each) {
    if (turns.turn == Turns::NO_TURN) return;
    Turns::Accesses* const element = accesses_of(at, int(sizeof(T)), name);
    if (element == nullptr) return;
    element->file = index.file;
    element->line = index.line;
    if (each != 0) element->agent = int(index.at) / each;
    ++element->plain;
}

// Registers a scalar field of the replica; end_turn() compares its value.
template <class T> FN void watch(const T* at, const char* name) {
    if (turns.scalars < 256) turns.scalar[turns.scalars++] = {at, int(sizeof(T)), name};
}

NOINLINE void begin_turn(int turn) {
    turns.turn  = turn;
    turns.agent = turns.all ? turn : Turns::NO_TURN;
    turns.count = 0;
    for (int k = 0; k < turns.scalars; ++k)
        accesses_of(turns.scalar[k].at, turns.scalar[k].bytes, turns.scalar[k].name);
}

[[noreturn]] NOINLINE void report_agents_and_exit(const Turns::Accesses& s, int agent) {
    dprintf(2, "%s:%d: phase: the iteration of agent %d writes '%s' of agent %d\n", s.file, s.line, agent, s.name, s.agent);
    _exit(97);
}

// Ends a turn: reports elements that this and another turn changed or read, and records the turn's accesses.
NOINLINE void end_turn() {
    constexpr int NO = Turns::NO_TURN;
    for (int k = 0; k < turns.count; ++k) {
        Turns::Accesses& s = turns.elements[turns.touched[k]];
        const int  me      = turns.turn;
        const bool changed = s.value != bytes_of(s.at, s.bytes);
        const bool reads   = s.plain > 0 && !changed;
        const auto fail    = [&](const char* what, int one, int other) {
            report_phase_and_exit(s.file, s.line, what, s.name, one, other);
        };
        if (changed && s.writer != NO && s.writer != me) fail("several iterations write", s.writer, me);
        if (changed && s.adder != NO && s.adder != me) fail("iterations add to, and one writes", s.adder, me);
        if (s.adder == me && s.writer != NO && s.writer != me) fail("iterations add to, and one writes", s.writer, me);
#ifdef STRICT_TURNS
        const int by = s.writer != NO && s.writer != me ? s.writer : s.adder;
        if (reads && by != NO && by != me) fail("an iteration reads what another changes,", me, by);
        const int reader = s.reader != NO && s.reader != me ? s.reader : s.other_reader;
        if ((changed || s.adder == me) && reader != NO && reader != me)
            fail("an iteration reads what another changes,", reader, me);
#endif
        if (changed && s.agent != NO) {
            if (turns.agent != NO && turns.agent != s.agent && !turns.single) report_agents_and_exit(s, turns.agent);
            turns.agent = s.agent;
        }
        if (changed) s.writer = me;
        if (reads && s.reader != me) (s.reader == NO ? s.reader : s.other_reader) = me;
    }
    turns.turn = NO;
}

FN void require_turn_end() {
    if (turns.turn == Turns::NO_TURN) return;
    report_phase_and_exit(turns.file, turns.line, "break or return, or another phase, within", "an iteration", turns.turn,
                          turns.turn);
}

// Starts a phase, and forgets the previous one's accesses. `all`: its turns are the agents, not other iterations.
FN void begin_phase(bool all, const char* file, int line) {
    require_turn_end();
    turns.all = all;
    ++turns.serial;
    turns.used = 0;
    turns.file = file, turns.line = line;
}

// The first turn of a phase, that of the last agent; -1: this launch skips the phase.
FN int first_turn(Team& team, int n, const char* over, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
    begin_phase(__builtin_strcmp(over, "AGENTS") == 0, file, line);
    turns.single   = n == 1;
    const bool now = turns.only == -1 || turns.phase == turns.only;
    ++turns.phase;
    return team.begin() != Team::NONE && now ? n - 1 : -1;
}

// Ends the current turn, if any, and starts turn i; false if i is -1.
FN bool next_turn(int i) {
    if (turns.turn != Turns::NO_TURN) end_turn();
    if (i < 0) return false;
    begin_turn(i);
    return true;
}

#undef FOR_EACH_AGENT
#undef FOR_EACH_AGENT_NO_WAIT
#define FOR_EACH_AGENT(i, n) for (int i = first_turn(team, (n), #n); next_turn(i); --i)
#define FOR_EACH_AGENT_NO_WAIT(i, n) for (int i = first_turn(team, (n), #n); next_turn(i); --i)

// gather() of team.cuh as a phase of one turn.
template <class Keep, class Put>
FN void gather_in_turn(Team& team, int& count, int n, int room, const Keep& keep, const Put& put,
                       const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    if (first_turn(team, 1, "1", file, line) < 0) return;
    int kept = 0;
    for (int i = 0; i < n; ++i)
        if (keep(i)) put(kept++, i);
    for (int k = kept; k < room; ++k) put(k, -1);
    count = kept;
}

// Applies add() or lower() to an integer, and records this turn as its adder; several turns may be adders.
template <class Change> FN void change_atomically(int& value, const Change& change) {
    Turns::Accesses* const element = turns.turn == Turns::NO_TURN ? nullptr : accesses_of(&value, int(sizeof value), "");
    if (element != nullptr && element->plain > 0) --element->plain;
    const bool unchanged = element != nullptr && element->value == bytes_of(&value, int(sizeof value));
    change(value);
    if (element == nullptr) return;
    if (unchanged) element->value = bytes_of(&value, int(sizeof value));
    element->adder = turns.turn;
}
FN void add_in_turn(int& sum, int value)       { change_atomically(sum, [&](int& field) { add(field, value); }); }
FN void lower_in_turn(int& minimum, int value) { change_atomically(minimum, [&](int& field) { lower(field, value); }); }

NOINLINE void check_phase_count(const char* name, int phases, int earlier) {
    if (phases == earlier) return;
    dprintf(2, "%s:%d: phase: %s goes through %d phases, and at other times through %d\n", turns.file, turns.line, name,
            phases, earlier);
    _exit(97);
}

// Calls a function of the rules once per phase, as if each phase were a launch: a call runs only its phase, and all
// code between phases, which must go through the same number of phases each time.
template <class Call> FN void launch_phases(const char* name, const Call& call) {
    turns.only = -2, turns.phase = 0;  // runs no phase, only counts
    call();
    const int  phases       = turns.phase;
    static int first_phases = phases;  // one variable per template instance, so per function
    check_phase_count(name, first_phases, phases);
    for (turns.only = 0; turns.only < phases; ++turns.only) {
        turns.phase = 0;
        call();
        require_turn_end();
        check_phase_count(name, phases, turns.phase);
    }
    turns.only = -1;
}

#define gather(...) gather_in_turn(__VA_ARGS__)
#define add(...) add_in_turn(__VA_ARGS__)
#define lower(...) lower_in_turn(__VA_ARGS__)

#endif
