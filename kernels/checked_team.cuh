// A row of observations that knows its length, in place of `Row`, for builds that find mistakes.
struct Row {
    float* at;
    int    lane;
    int    length = 0x7fffffff;
    FN float& operator[](CheckedIndex index) const { return at[index.within("the row of observations", length)]; }
};
