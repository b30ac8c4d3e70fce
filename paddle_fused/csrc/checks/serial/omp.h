// The OpenMP functions used by the kernels, for compilers without OpenMP: everything runs on one thread.
#pragma once

inline int omp_get_max_threads() { return 1; }
inline int omp_get_thread_num() { return 0; }
