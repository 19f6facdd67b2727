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

// Where an element of an array of several dimensions lies: each of its indices is looked at.
template <int... SIZES> struct Shape {
    FN static constexpr int size(int dimension) {
        constexpr int sizes[] = {SIZES...};
        return sizes[dimension];
    }
    FN static constexpr int elements() { return (SIZES * ...); }
    FN static Index place(const char* name, const CheckedIndex& i) { return i.within(name, elements()); }
    FN static Index place(const char* name, const CheckedIndex& i, const CheckedIndex& j) {
        static_assert(sizeof...(SIZES) == 2, "two indices for an array that has not two dimensions");
        return i.within(name, size(0)) * size(1) + j.within(name, size(1));
    }
    FN static Index place(const char* name, const CheckedIndex& i, const CheckedIndex& j, const CheckedIndex& k) {
        static_assert(sizeof...(SIZES) == 3, "three indices for an array that has not three dimensions");
        return (i.within(name, size(0)) * size(1) + j.within(name, size(1))) * size(2) + k.within(name, size(2));
    }
};

// In place of an array that a State or an observation holds.
template <class T, class Of, int... SIZES> struct CheckedArray : Shape<SIZES...> {
    T at[Shape<SIZES...>::elements()];

    using At = const CheckedIndex&;
    FN T&       operator[](CheckedIndex i) { return at[CheckedArray::place(Of::name(), i)]; }
    FN const T& operator[](CheckedIndex i) const { return at[CheckedArray::place(Of::name(), i)]; }
    FN T&       operator()(At i, At j) { return at[CheckedArray::place(Of::name(), i, j)]; }
    FN const T& operator()(At i, At j) const { return at[CheckedArray::place(Of::name(), i, j)]; }
    FN T&       operator()(At i, At j, At k) { return at[CheckedArray::place(Of::name(), i, j, k)]; }
    FN const T& operator()(At i, At j, At k) const { return at[CheckedArray::place(Of::name(), i, j, k)]; }
    FN T*       operator+(CheckedIndex i) { return at + i.within(Of::name(), CheckedArray::elements() + 1); }
    FN const T* operator+(CheckedIndex i) const { return at + i.within(Of::name(), CheckedArray::elements() + 1); }
    template <class P, typename = typename CheckedIf<CHECKED_SAME<P, T> || CHECKED_SAME<P, const T>>::type> FN operator P*() {
        return at;
    }
    template <class P, typename = typename CheckedIf<CHECKED_SAME<P, const T>>::type> FN operator P*() const { return at; }
};

// In place of an array of several dimensions that lies elsewhere, and of a table.
template <class T, int... SIZES> struct Table : CheckedPointer<T>, Shape<SIZES...> {
    using At = const CheckedIndex&;
    FN Table(T* first, const char* name, int each = 0) : CheckedPointer<T>{first, Table::elements(), name, each} {}
    FN T& operator()(At i) const { return told(Table::place(this->name, i), i); }
    FN T& operator()(At i, At j) const { return told(Table::place(this->name, i, j), j); }
    FN T& operator()(At i, At j, At k) const { return told(Table::place(this->name, i, j, k), k); }

  private:
    FN T& told(Index place, At index) const {
        accessed(&this->at[place], {place, index.file, index.line}, this->name, this->each);
        return this->at[place];
    }
};

// In place of the numbers of one box of a replica's observation, and of an action mask.
template <class T> struct Elements : CheckedPointer<T> {
    FN Elements(T* first, int length, const char* name) : CheckedPointer<T>{first, length, name} {}
};
struct Mask : CheckedPointer<bool> {
    FN Mask(bool* first, int length) : CheckedPointer<bool>{first, length, "the action mask"} {}
};
