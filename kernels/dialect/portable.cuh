// The dialect that all other headers are written in, and the only file that tests whether the compiler is a GPU's or a
// CPU's. gpu.cuh and cpu.cuh define the macros and functions, rows.cuh the output of rows; only these and
// training/cpu/perceptrons.cuh test which GPU or which CPU compiler it is.
//
//   FN                       a function of the simulation, always inlined
//   NOINLINE                 a rarely called function, not inlined
//   KERNEL(name, Call)       an entry point; its one argument, a struct Call, is named `call`
//   KERNEL_OF_BLOCKS(name, Call, threads, blocks)    the same with __launch_bounds__(threads, blocks)
//   FOR_EACH_ENV(env, n)     loops over replicas 0 to n-1 in tiles of at most LANES
//   FOR_EACH_ENV_ALTERNATING(env, n, launch)    the same; a GPU reverses the order in every second launch, to start with
//                            the replicas whose memory the previous launch left in the L2 cache
//   FOR_EACH_LANE(k, env)    loops over the replicas env.index(k) of one tile; iterations must be independent
//   FOR_EACH_LANE_ALONE(k, env)       the same without vectorisation
//   FOR_EACH_LANE_OR(bits, k, env)    FOR_EACH_LANE with a reduction into an int: bits |= ...
//   FOR_EACH_MARKED(k, marks, env)    loops over the few lanes whose mark is not zero
//   FOR_EACH_BLOCK(block)    loops over the blocks of a launch, for teams of agents: see team.cuh
//   CHECKED                  defined in builds that check every index: see checked.cuh
//   UNROLL                   unrolls the next loop, which has few iterations
//
// Both compilers run without contraction, so a*b + c rounds twice; write fma(a, b, c) for a single rounding.

using u8    = unsigned char;
using u16   = unsigned short;
using u32   = unsigned int;
using i64   = long long;
using u64   = unsigned long long;
using Index = long long;  // of a replica or of an array element: arrays may have more than 2^31 elements

// WIDTH floats that a GPU loads and stores in one instruction.
template <int WIDTH> struct alignas(WIDTH * sizeof(float)) Wide { float value[WIDTH]; };

#ifdef __CUDACC__
#define _for_gpu 1
#else
#define _for_gpu 0
#endif
