// Bounds-checked arrays, for debug builds: an index out of range is reported with the line of the rules that used it,
// and ends the program. They replace the plain arrays of table.cuh; results are the same, but the build is slow.

// An index, with the file and line of the rules that pass it: default arguments are evaluated at the call.
struct CheckedIndex {
    Index       at;
    const char* file;
    int         line;
    FN CheckedIndex(Index at_, const char* file_ = __builtin_FILE(), int line_ = __builtin_LINE())
        : at(at_), file(file_), line(line_) {}
    FN Index within(const char* name, Index length) const {
        if (at < 0 || at >= length) report_index_and_exit(file, line, at, name, length);
        return at;
    }
};

#ifdef TURNS
// Records the access of a turn to an element, in builds that check phases.
template <class T> FN void accessed(const T* at, const CheckedIndex& index, const char* name, int each);
#else
template <class T> FN void accessed(const T*, const CheckedIndex&, const char*, int) {}
#endif

template <class A, class B> constexpr bool CHECKED_SAME       = false;
template <class A>          constexpr bool CHECKED_SAME<A, A> = true;
template <bool> struct CheckedIf {};
template <> struct CheckedIf<true> { using type = int; };

// Replaces a pointer to `length` elements; converts to a plain, unchecked pointer. (By a template, as [] would
// otherwise be ambiguous, and to P*, not P: for P, NVRTC would report errors of the rules here.)
template <class T> struct CheckedPointer {
    T*          at;
    Index       length;
    const char* name;
    int         each = 0;  // elements per agent; 0: not per agent

    FN T& operator[](CheckedIndex index) const {
        T& element = at[index.within(name, length)];
        accessed(&element, index, name, each);
        return element;
    }
    FN T& operator*() const { return *at; }
    FN T* operator+(CheckedIndex index) const { return at + index.within(name, length + 1); }
    template <class P, typename = typename CheckedIf<CHECKED_SAME<P, T> || CHECKED_SAME<P, const T>>::type>
    FN operator P*() const { return at; }
};

// `Of` for a CheckedArray in an observation; for arrays of the state it is generated.
struct OfObservation { FN static const char* name() { return "the observation"; } };

// The shape of an array, and the row-major offset of an element, after a check of each index.
template <int... SIZES> struct Shape {
    FN static constexpr int size(int dimension) {
        constexpr int sizes[] = {SIZES...};
        return sizes[dimension];
    }
    FN static constexpr int elements() { return (SIZES * ...); }
    FN static Index offset(const char* name, const CheckedIndex& i) { return i.within(name, elements()); }
    FN static Index offset(const char* name, const CheckedIndex& i, const CheckedIndex& j) {
        static_assert(sizeof...(SIZES) == 2, "two indices for an array that has not two dimensions");
        return i.within(name, size(0)) * size(1) + j.within(name, size(1));
    }
    FN static Index offset(const char* name, const CheckedIndex& i, const CheckedIndex& j, const CheckedIndex& k) {
        static_assert(sizeof...(SIZES) == 3, "three indices for an array that has not three dimensions");
        return (i.within(name, size(0)) * size(1) + j.within(name, size(1))) * size(2) + k.within(name, size(2));
    }
};

// Replaces an array inside a State or an observation, whose name in messages is Of::name().
template <class T, class Of, int... SIZES> struct CheckedArray : Shape<SIZES...> {
    T at[Shape<SIZES...>::elements()];

    using At = const CheckedIndex&;
    FN T&       operator[](CheckedIndex i) { return at[CheckedArray::offset(Of::name(), i)]; }
    FN const T& operator[](CheckedIndex i) const { return at[CheckedArray::offset(Of::name(), i)]; }
    FN T&       operator()(At i, At j) { return at[CheckedArray::offset(Of::name(), i, j)]; }
    FN const T& operator()(At i, At j) const { return at[CheckedArray::offset(Of::name(), i, j)]; }
    FN T&       operator()(At i, At j, At k) { return at[CheckedArray::offset(Of::name(), i, j, k)]; }
    FN const T& operator()(At i, At j, At k) const { return at[CheckedArray::offset(Of::name(), i, j, k)]; }
    FN T*       operator+(CheckedIndex i) { return at + i.within(Of::name(), CheckedArray::elements() + 1); }
    FN const T* operator+(CheckedIndex i) const { return at + i.within(Of::name(), CheckedArray::elements() + 1); }
    template <class P, typename = typename CheckedIf<CHECKED_SAME<P, T> || CHECKED_SAME<P, const T>>::type>
    FN operator P*() { return at; }
    template <class P, typename = typename CheckedIf<CHECKED_SAME<P, const T>>::type>
    FN operator P*() const { return at; }
};

// Replaces a table, or an array of several dimensions in other memory.
template <class T, int... SIZES> struct Table : CheckedPointer<T>, Shape<SIZES...> {
    using At = const CheckedIndex&;
    FN Table(T* first, const char* name, int each = 0) : CheckedPointer<T>{first, Table::elements(), name, each} {}
    FN T& operator()(At i) const { return element(Table::offset(this->name, i), i); }
    FN T& operator()(At i, At j) const { return element(Table::offset(this->name, i, j), j); }
    FN T& operator()(At i, At j, At k) const { return element(Table::offset(this->name, i, j, k), k); }

  private:
    FN T& element(Index offset, At index) const {
        accessed(&this->at[offset], {offset, index.file, index.line}, this->name, this->each);
        return this->at[offset];
    }
};

// Replace one Box of a replica's observation, and an action mask.
template <class T> struct Elements : CheckedPointer<T> {
    FN Elements(T* first, int length, const char* name) : CheckedPointer<T>{first, length, name} {}
};
struct Mask : CheckedPointer<bool> {
    FN Mask(bool* first, int length) : CheckedPointer<bool>{first, length, "the action mask"} {}
};
