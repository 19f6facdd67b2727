// What the rules index: tables, observations and action masks. checked.cuh has the same for builds that find mistakes.

// Numbers that all replicas read and nobody writes: table[i], counted from the first, or table(row, column).

template <class T, int... SIZES> struct Table {
    static constexpr int DIMENSIONS = sizeof...(SIZES);

    const T* at;

    FN static constexpr int size(int dimension) {
        constexpr int sizes[] = {SIZES...};
        return sizes[dimension];
    }
    FN T operator[](int i) const { return at[i]; }
    FN T operator()(int i) const { return at[i]; }
    FN T operator()(int i, int j) const {
        static_assert(DIMENSIONS == 2, "two indices for a table that has not two dimensions");
        return at[i * size(DIMENSIONS - 1) + j];
    }
    FN T operator()(int i, int j, int k) const {
        static_assert(DIMENSIONS == 3, "three indices for a table that has not three dimensions");
        return at[(i * size(1) + j) * size(DIMENSIONS - 1) + k];
    }
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
