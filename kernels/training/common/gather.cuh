// Brings together what each process has, or what follows from it.

KERNEL_OF_BLOCKS(kernel_gather, GatherCall, BLOCK, BLOCKS) {
    FOR_EACH_BLOCK(block) {
        const u32   round = u32(call.rounds[block]) + 1;
        const Index end   = minimum(call.count, (block + 1) * BLOCK);
        for (Index number = block * BLOCK + thread_rank(); number < end; number += STRIDE) {
            tell_others(call, round, number, u32(call.own[number]));
        }
        for (Index number = block * BLOCK + thread_rank(); number < end; number += STRIDE) {
            u32 found[PROCESSES];
            hear(call, round, number, u32(call.own[number]), found);
            UNROLL
            for (int process = 0; process < PROCESSES; ++process) {
                call.gathered[process * call.count + number] = int(found[process]);
            }
        }
        block_barrier();
        if (thread_rank() == 0) call.rounds[block] = int(round);
    }
}

// Puts into place the sums of so many numbers over the processes, in order of rank, and of the others the largest; NaN
// counts as larger than all.
KERNEL_OF_BLOCKS(kernel_combine, CombineCall, BLOCK, BLOCKS) {
    FOR_EACH_BLOCK(block) {
        const u32   round = u32(call.rounds[block]) + 1;
        const Index first = block * BLOCK + thread_rank(), end = minimum(call.count, (block + 1) * BLOCK);
        for (Index number = first; number < end; number += STRIDE) {
            tell_others(call, round, number, bits_of(call.figures[number]));
        }
        for (Index number = first; number < end; number += STRIDE) {
            u32 found[PROCESSES];
            hear(call, round, number, bits_of(call.figures[number]), found);
            float combined = from_bits(found[0]);
            UNROLL
            for (int process = 1; process < PROCESSES; ++process) {
                const float value = from_bits(found[process]);
                if (number < call.added) {
                    combined += value;
                } else if (combined == combined && !(value <= combined)) {
                    combined = value;
                }
            }
            call.figures[number] = combined;
        }
        block_barrier();
        if (thread_rank() == 0) call.rounds[block] = int(round);
    }
}
