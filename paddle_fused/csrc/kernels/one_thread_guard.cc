#include "kernels/one_thread_guard.h"

#include <omp.h>

namespace paddle_fused::kernels {

OneThreadGuard::OneThreadGuard() : threads_(omp_get_max_threads()) { omp_set_num_threads(1); }
OneThreadGuard::~OneThreadGuard() { omp_set_num_threads(threads_); }

}  // namespace paddle_fused::kernels
