// Arrays that know their length, for builds that find mistakes: an index outside is told, with the line of the rules
// that gave it, and ends the program. Such a build has them in place of `World`'s and `State`'s plain arrays, of tables,
// rows of observations and action masks; it is slow, and reads otherwise like any other.

// An index, and where in the rules it was given: what it is made of by default is of the place where it is made.
struct CheckedIndex {
    Index       at;
    const char* file;
    int         line;
    FN CheckedIndex(Index given, const char* given_file = __builtin_FILE(), int given_line = __builtin_LINE())
        : at(given), file(given_file), line(given_line) {}
    FN Index within(const char* name, Index length) const {
        if (at < 0 || at >= length) tell_index_and_stop(file, line, at, name, length);
        return at;
    }
};

// Where the turns of phases are followed: tells which element one comes to.
#ifdef TURNS
template <class T> FN void accessed(const T* at, const CheckedIndex& index, const char* name, int each);
#else
template <class T> FN void accessed(const T*, const CheckedIndex&, const char*, int) {}
#endif

template <class A, class B> constexpr bool CHECKED_SAME       = false;
template <class A>          constexpr bool CHECKED_SAME<A, A> = true;
template <bool> struct CheckedIf {};
template <> struct CheckedIf<true> { using type = int; };

// In place of a pointer to `length` elements. What takes a plain pointer is given one, and may do with it what it likes.
// (By a template, or indices would be ambiguous; of P* and not of P, or NVRTC would take its line for theirs.)
template <class T> struct CheckedPointer {
    T*          at;
    Index       length;
    const char* name;
    int         each = 0;  // of each agent; 0: they are no agent's

    FN T& operator[](CheckedIndex index) const {
        T& found = at[index.within(name, length)];
        accessed(&found, index, name, each);
        return found;
    }
    FN T& operator*() const { return *at; }
    FN T* operator+(CheckedIndex index) const { return at + index.within(name, length + 1); }
    template <class P, typename = typename CheckedIf<CHECKED_SAME<P, T> || CHECKED_SAME<P, const T>>::type> FN operator P*() const {
        return at;
    }
};

// What a CheckedArray is, in messages; those of the state have the names of their fields.
struct OfObservation { FN static const char* name() { return "the observation"; } };

// In place of an array of LENGTH elements.
template <class T, int LENGTH, class Of> struct CheckedArray {
    T at[LENGTH];

    FN T&       operator[](CheckedIndex index) { return at[index.within(Of::name(), LENGTH)]; }
    FN const T& operator[](CheckedIndex index) const { return at[index.within(Of::name(), LENGTH)]; }
    FN T*       operator+(CheckedIndex index) { return at + index.within(Of::name(), LENGTH + 1); }
    FN const T* operator+(CheckedIndex index) const { return at + index.within(Of::name(), LENGTH + 1); }
    template <class P, typename = typename CheckedIf<CHECKED_SAME<P, T> || CHECKED_SAME<P, const T>>::type> FN operator P*() {
        return at;
    }
    template <class P, typename = typename CheckedIf<CHECKED_SAME<P, const T>>::type> FN operator P*() const { return at; }
};

// In place of a table: each of its indices is looked at.
template <class T, int... SIZES> struct Table {
    static constexpr int DIMENSIONS = sizeof...(SIZES);

    const T*    at;
    const char* name;

    FN static constexpr int size(int dimension) {
        constexpr int sizes[] = {SIZES...};
        return sizes[dimension];
    }
    FN static constexpr Index elements() { return (Index(SIZES) * ...); }
    FN T operator[](CheckedIndex i) const { return at[i.within(name, elements())]; }
    FN T operator()(CheckedIndex i) const { return at[i.within(name, elements())]; }
    FN T operator()(CheckedIndex i, CheckedIndex j) const {
        static_assert(DIMENSIONS == 2, "two indices for a table that has not two dimensions");
        return at[i.within(name, size(0)) * size(DIMENSIONS - 1) + j.within(name, size(DIMENSIONS - 1))];
    }
    FN T operator()(CheckedIndex i, CheckedIndex j, CheckedIndex k) const {
        static_assert(DIMENSIONS == 3, "three indices for a table that has not three dimensions");
        const Index plane = i.within(name, size(0)) * size(1) + j.within(name, size(1));
        return at[plane * size(DIMENSIONS - 1) + k.within(name, size(DIMENSIONS - 1))];
    }
};

// In place of the numbers of one box of a replica's observation, and of an action mask.
template <class T> struct Elements : CheckedPointer<T> {
    FN Elements(T* first, int length, const char* name) : CheckedPointer<T>{first, length, name} {}
};
struct Mask : CheckedPointer<bool> {
    FN Mask(bool* first, int length) : CheckedPointer<bool>{first, length, "the action mask"} {}
};
