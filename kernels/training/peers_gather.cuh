// Brings together what each process has.

KERNEL_OF_BLOCKS(kernel_gather, GatherCall, BLOCK, 1) {
    FOR_EACH_BLOCK(block) {
        const u32 round = u32(call.rounds[block]) + 1;
        for (int place = thread_rank(); place < BLOCK; place += STRIDE) {
            const Index number = block * BLOCK + place;
            if (number < call.count) {
                u32 found[PROCESSES];
                exchange(call, round, number, u32(call.own[number]), found);
                UNROLL
                for (int process = 0; process < PROCESSES; ++process) {
                    call.gathered[process * call.count + number] = int(found[process]);
                }
            }
        }
        block_barrier();
        if (thread_rank() == 0) call.rounds[block] = int(round);
    }
}
