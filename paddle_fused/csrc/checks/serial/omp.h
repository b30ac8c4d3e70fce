// What the kernels ask of OpenMP, where the compiler has none: all of it runs on one thread.
#pragma once

inline int omp_get_max_threads() { return 1; }
inline int omp_get_thread_num() { return 0; }
