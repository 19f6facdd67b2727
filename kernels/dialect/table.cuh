// The arrays that rules index: tables, observations, action masks, multi-dimensional arrays. With checks: checked.cuh.

// The shape of an array, and the row-major offset of an element.
template <int... SIZES> struct Shape {
    FN static constexpr int size(int dimension) {
        constexpr int sizes[] = {SIZES...};
        return sizes[dimension];
    }
    FN static constexpr int elements() { return (SIZES * ...); }
    FN static int offset(int i) { return i; }
    FN static int offset(int i, int j) {
        static_assert(sizeof...(SIZES) == 2, "two indices for an array that has not two dimensions");
        return i * size(1) + j;
    }
    FN static int offset(int i, int j, int k) {
        static_assert(sizeof...(SIZES) == 3, "three indices for an array that has not three dimensions");
        return (i * size(1) + j) * size(2) + k;
    }
};

// An array in other memory: array(i, j), or array[i] with a flat index. Tables and parameters are const.
template <class T, int... SIZES> struct Table : Shape<SIZES...> {
    T* at;
    FN Table(T* first) : at(first) {}
    template <class... Indices> FN T& operator()(Indices... index) const { return at[Table::offset(index...)]; }
    FN T& operator[](int i) const { return at[i]; }
    FN operator T*() const { return at; }
};

// An array inside a State.
template <class T, int... SIZES> struct LocalTable : Shape<SIZES...> {
    T at[Shape<SIZES...>::elements()];
    template <class... Indices> FN T& operator()(Indices... index) { return at[LocalTable::offset(index...)]; }
    template <class... Indices> FN const T& operator()(Indices... index) const { return at[LocalTable::offset(index...)]; }
    FN T&       operator[](int i) { return at[i]; }
    FN const T& operator[](int i) const { return at[i]; }
};

// One Box of a replica's observation, in global memory.
template <class T> struct Elements {
    T* at;
    FN Elements(T* first, int, const char*) : at(first) {}
    FN T& operator[](int j) const { return at[j]; }
};

// The action mask of an agent: one bool per choice; for MultiDiscrete, the choices of each element one after another.
struct Mask {
    bool* at;
    FN Mask(bool* first, int) : at(first) {}
    FN bool& operator[](int choice) const { return at[choice]; }
};
