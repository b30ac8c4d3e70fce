// paddle_fused_kernels_check [baseline|neon|avx2|avx512|avx512_bf16|amx]...: runs every kernel on the named
// instruction sets that this processor supports (default: all) and compares the results with scalar formulas. Each
// instruction set runs in a separate process. The exit status is 1 if a result exceeds its bound or a kernel crashes.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "checks/checks.h"
#include "kernels/isa.h"

namespace paddle_fused::checks {
namespace {

constexpr int kHolds = 0, kFailed = 1, kNotOffered = 2;

int check_all(const char* isa, uint64_t* fingerprint) {
  setenv("PADDLE_FUSED_ISA", isa, 1);
  try {
    kernels::active_isa();
  } catch (const std::invalid_argument&) {
    std::printf("%-11s is not supported by this processor\n", isa);
    return kNotOffered;
  }
  Report report(isa);
  for (const auto check :
       {check_cast, check_unscale, check_binary, check_scale, check_sum_rows, check_sum_terms, check_gelu,
        check_squared_norm, check_matmul, check_grouped_matmul, check_attention, check_rms_norm, check_dropout_add_norm,
        check_gated, check_rotary, check_adam, check_cross_entropy, check_linear_cross_entropy, check_embedding,
        check_make_dense, check_moe})
    check(&report);
  *fingerprint = report.fingerprint();
  return report.finish() ? kHolds : kFailed;
}

// The status of `check_all` in a child process, which may crash.
int check_in_child(const char* isa, uint64_t* fingerprint) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const int status = check_all(isa, fingerprint);
    std::fflush(stdout);
    _exit(status);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    std::perror("The check could not be started");
    return kFailed;
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  std::printf("%-11s was killed by signal %d\n", isa, WTERMSIG(status));
  return kFailed;
}

}  // namespace
}  // namespace paddle_fused::checks

int main(int argc, char** argv) {
  using namespace paddle_fused;
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  bool holds = true;
  // The children store their fingerprints in memory shared with this process.
  void* shared = mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    std::perror("The check could not be started");
    return 1;
  }
  auto* fingerprint = static_cast<uint64_t*>(shared);
  uint64_t first = 0;
  for (const kernels::Isa isa : kernels::kAllIsas) {
    const char* name = kernels::isa_name(isa);
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) continue;
    const int status = checks::check_in_child(name, fingerprint);
    holds &= status != checks::kFailed;
    if (status != checks::kHolds) continue;
    if (first == 0) first = *fingerprint;
    if (*fingerprint == first) continue;
    holds = false;
    std::printf("%-11s dropout keeps different elements than on the first instruction set\n", name);
  }
  std::printf(holds ? "All results are within their bounds.\n" : "Some results exceed their bounds.\n");
  return holds ? 0 : 1;
}
