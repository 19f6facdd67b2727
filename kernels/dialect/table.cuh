// What the rules index: arrays of several dimensions, tables, observations and action masks. checked.cuh has the same for builds that find mistakes.

// Where an element of an array of several dimensions lies, in rows.
template <int... SIZES> struct Shape {
    FN static constexpr int size(int dimension) {
        constexpr int sizes[] = {SIZES...};
        return sizes[dimension];
    }
    FN static constexpr int elements() { return (SIZES * ...); }
    FN static int place(int i) { return i; }
    FN static int place(int i, int j) {
        static_assert(sizeof...(SIZES) == 2, "two indices for an array that has not two dimensions");
        return i * size(1) + j;
    }
    FN static int place(int i, int j, int k) {
        static_assert(sizeof...(SIZES) == 3, "three indices for an array that has not three dimensions");
        return (i * size(1) + j) * size(2) + k;
    }
};

// What lies elsewhere: array(i, j), or array[i], counted from the first. Tables and parameters are const.
template <class T, int... SIZES> struct Table : Shape<SIZES...> {
    T* at;
    FN Table(T* first) : at(first) {}
    template <class... Indices> FN T& operator()(Indices... index) const { return at[Table::place(index...)]; }
    FN T& operator[](int i) const { return at[i]; }
    FN operator T*() const { return at; }
};

// The same of what a State holds.
template <class T, int... SIZES> struct Held : Shape<SIZES...> {
    T at[Shape<SIZES...>::elements()];
    template <class... Indices> FN T& operator()(Indices... index) { return at[Held::place(index...)]; }
    template <class... Indices> FN const T& operator()(Indices... index) const { return at[Held::place(index...)]; }
    FN T&       operator[](int i) { return at[i]; }
    FN const T& operator[](int i) const { return at[i]; }
};

// The numbers of one box of a replica's observation, in memory.
template <class T> struct Elements {
    T* at;
    FN Elements(T* first, int, const char*) : at(first) {}
    FN T& operator[](int j) const { return at[j]; }
};

// Which of an agent's choices are possible: one after another, those of a MultiDiscrete element after element.
struct Mask {
    bool* at;
    FN Mask(bool* first, int) : at(first) {}
    FN bool& operator[](int choice) const { return at[choice]; }
};
