// The dialect: the words every other header is written in, and the only file that asks whether a GPU's or a CPU's compiler
// reads it. What they mean is in gpu.cuh and cpu.cuh, and how rows of numbers get out in rows.cuh. These ask which GPU, or
// which of a CPU's compilers; of all other headers only training/cpu/perceptrons.cuh does.
//
//   FN                       a function of the simulation
//   SELDOM                   one that is seldom called, and kept out of the way
//   KERNEL(name, Call)       an entry point; its one argument is named `call`
//   KERNEL_OF_BLOCKS(name, Call, threads, blocks)    one whose blocks have at most so many threads, so many of them at a time
//   FOR_EACH_ENV(env, n)     runs over replicas 0 to n-1 in tiles of at most LANES
//   FOR_EACH_ENV_IN_TURN(env, n, turn)    the same; on a GPU in odd turns backwards, so that it begins with those whose
//                            memory the turn before has left in the second-level cache
//   FOR_EACH_LANE(k, env)    runs over the replicas env.index(k) of one tile; bodies must not depend on one another
//   FOR_EACH_LANE_ALONE(k, env)       the same, one after another: for bodies that no compiler vectorises
//   NOTE_LANES(note, k, env) FOR_EACH_LANE whose body may also gather into an int: note |= ...
//   FOR_EACH_MARKED(k, marks, env)    runs over the few lanes whose mark is not zero
//   FOR_EACH_BLOCK(block)    runs over the blocks of a launch whose replicas have a team of agents: see team.cuh
//   CHECKED                  defined in builds that look at every index: see checked.cuh
//   UNROLL                   before a loop of a small, constant number of turns
//
// Contraction is off in both compilers, so a*b + c rounds twice on both; write fma(a, b, c) where one rounding is wanted.

using u8    = unsigned char;
using u16   = unsigned short;
using u32   = unsigned int;
using i64   = long long;
using u64   = unsigned long long;
using Index = long long;  // of a replica or of an array element: arrays may hold more than 2^31 elements

// Numbers side by side, which a GPU reads and stores at once.
template <int WIDTH> struct alignas(WIDTH * sizeof(float)) Wide { float value[WIDTH]; };

#ifdef __CUDACC__
#define _for_gpu 1
#else
#define _for_gpu 0
#endif
