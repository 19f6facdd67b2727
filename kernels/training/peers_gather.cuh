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

// Variance and mean of all samples of one quantity, from each process's number of samples, variance and mean (Chan et
// al. 1979): a thread each.
KERNEL_OF_BLOCKS(kernel_pool, PoolCall, BLOCK, 1) {
    FOR_EACH_BLOCK(block) {
        const u32 round = u32(call.rounds[block]) + 1;
        for (int quantity = thread_rank(); quantity < call.quantities; quantity += STRIDE) {
            const float* own = call.own + 3 * quantity;
            u32 counts[PROCESSES], variances[PROCESSES], means[PROCESSES];
            UNROLL
            for (int part = 0; part < 3; ++part) tell_others(call, round, 3 * quantity + part, bits_of(own[part]));
            hear(call, round, 3 * quantity, bits_of(own[0]), counts);
            float count = 0, mean = 0, variance = 0, shares[PROCESSES];
            UNROLL
            for (int process = 0; process < PROCESSES; ++process) count += from_bits(counts[process]);
            const float one = 1.0f / maximum(count, 1.0f);
            UNROLL
            for (int process = 0; process < PROCESSES; ++process) shares[process] = one * from_bits(counts[process]);
            hear(call, round, 3 * quantity + 1, bits_of(own[1]), variances);
            hear(call, round, 3 * quantity + 2, bits_of(own[2]), means);
            UNROLL
            for (int process = 0; process < PROCESSES; ++process) mean += shares[process] * from_bits(means[process]);
            UNROLL
            for (int process = 0; process < PROCESSES; ++process) {
                const float shift = from_bits(means[process]) - mean;
                variance += shares[process] * (from_bits(variances[process]) + shift * shift);
            }
            call.pooled[2 * quantity]     = variance;
            call.pooled[2 * quantity + 1] = mean;
        }
        block_barrier();
        if (thread_rank() == 0) call.rounds[block] = int(round);
    }
}
