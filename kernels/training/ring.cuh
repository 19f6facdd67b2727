// Memory on its way to a block: a ring of stages in shared memory that the copy engine fills while others are worked on.
//
// One thread fills a stage once all readers have left it; readers wait until all of its bytes are there. Both count the
// stages alike, round after round.

FN u32  shared_address(const void* at) { return u32(__cvta_generic_to_shared(at)); }
FN void begin_gate(u64* gate, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(gate)), "r"(arrivals) : "memory");
}
FN void arrive(u64* gate) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(gate)) : "memory");
}
FN void await_gate(u64* gate, u32 round) {
    u32 passed;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(passed)
                     : "r"(shared_address(gate)), "r"(round % 2)
                     : "memory");
    } while (passed == 0);
}

template <int STAGES, int BYTES> struct Ring {
    alignas(1024) unsigned char stages[STAGES][BYTES];
    u64 full[STAGES], empty[STAGES];

    FN void begin(int readers) {  // by one thread, before a barrier of the block
        for (int stage = 0; stage < STAGES; ++stage) {
            begin_gate(full + stage, 1);
            begin_gate(empty + stage, u32(readers));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // The thread that fills: waits for room in the stage, and tells how many bytes will come.
    FN void open(u32 number, u32 bytes) {
        const u32 stage = number % STAGES;
        await_gate(empty + stage, number / STAGES + 1);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full + stage)),
                     "r"(bytes)
                     : "memory");
    }
    FN void copy(u32 number, u32 to, const void* from, u32 bytes) {
        const u32 stage = number % STAGES;
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(stages[stage] + to)),
                     "l"(from), "r"(bytes), "r"(shared_address(full + stage))
                     : "memory");
    }
    FN void await(u32 number) { await_gate(full + number % STAGES, number / STAGES); }
    FN void leave(u32 number) { arrive(empty + number % STAGES); }  // one thread of each reader
};
