// Blocks that read one another's shared memory. CUDA only, from Hopper on.

constexpr int CLUSTER = 8;  // blocks: the most that every such device has

// A function that remains one: code that is run once is best short, for it has to be fetched.
#define APART static __device__ __noinline__

#define KERNEL_OF_CLUSTERS(name, Call, threads, blocks) \
    KERNEL_AS(name, Call, __cluster_dims__(CLUSTER) __launch_bounds__(threads, blocks))

FN int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
FN int  cluster_number() { return block_number() / CLUSTER; }
FN int  cluster_count()  { return block_count() / CLUSTER; }
FN void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// What another block has where this one has `own`.
FN float of_block(const float* own, int rank) {
    u32   at;
    float value;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(u32(__cvta_generic_to_shared(own))), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
    return value;
}

// The sum over all blocks, in the order of their ranks.
FN float summed_over_cluster(const float* own) {
    float of[CLUSTER], sum = 0;
    UNROLL
    for (int rank = 0; rank < CLUSTER; ++rank) of[rank] = of_block(own, rank);
    UNROLL
    for (int rank = 0; rank < CLUSTER; ++rank) sum += of[rank];
    return sum;
}

// The same of four numbers side by side.
FN Wide<4> four_over_cluster(const float* own) {
    Wide<4>   of[CLUSTER], sum = {};
    const u32 at = u32(__cvta_generic_to_shared(own));
    UNROLL
    for (int rank = 0; rank < CLUSTER; ++rank) {
        u32 there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(of[rank].value[0]), "=f"(of[rank].value[1]), "=f"(of[rank].value[2]), "=f"(of[rank].value[3])
                     : "r"(there) : "memory");
    }
    UNROLL
    for (int rank = 0; rank < CLUSTER; ++rank) {
        UNROLL
        for (int e = 0; e < 4; ++e) sum.value[e] += of[rank].value[e];
    }
    return sum;
}
