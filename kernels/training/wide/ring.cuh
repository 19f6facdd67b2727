// Memory on its way to a block: a ring of stages in shared memory that the copy engine fills while others are worked on.
//
// Each warpgroup waits until all bytes of a stage are there, and tells when it is done with it; the last to do so fills
// it anew, so that none waits for another.

FN u32  shared_address(const void* at) { return u32(__cvta_generic_to_shared(at)); }
FN void begin_gate(u64* gate) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(gate)) : "memory");
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

FN void expect_bytes(u64* gate, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(gate)), "r"(bytes) : "memory");
}
FN void copy_bytes(void* to, const void* from, u32 bytes, u64* gate) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(gate))
                 : "memory");
}

template <int STAGES, int BYTES, int READERS> struct Ring {
    alignas(1024) unsigned char stages[STAGES][BYTES];
    u64 full[STAGES];
    u32 left[STAGES];

    // By one thread, before a barrier of the block; `fill(number)` opens a stage and copies, or does nothing at the end.
    template <class Fill> FN void begin(const Fill& fill) {
        for (int stage = 0; stage < STAGES; ++stage) {
            begin_gate(full + stage);
            left[stage] = 0;
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (u32 number = 0; number < STAGES; ++number) fill(number);
    }
    FN void open(u32 number, u32 bytes) { expect_bytes(full + number % STAGES, bytes); }
    FN void copy(u32 number, u32 to, const void* from, u32 bytes) {
        copy_bytes(stages[number % STAGES] + to, from, bytes, full + number % STAGES);
    }
    FN void await(u32 number) { await_gate(full + number % STAGES, number / STAGES); }

    // By a warpgroup whose products with the stage are finished.
    template <class Fill> FN void leave(u32 number, const Fill& fill) {
        if (thread_rank() % GROUP != 0) return;
        u32 before;
        asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "r"(shared_address(left + number % STAGES))
                     : "memory");
        if (before % READERS == READERS - 1) fill(number + STAGES);
    }
};
