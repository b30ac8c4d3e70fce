#include "runtime/acl.h"

#include <cstring>

#include "runtime/config.h"

// In a separate source file, so the compiler cannot inline it into its callers.
extern "C" int aclopCompileAndExecute(const char* type, int, const void* const*, const void* const*, int,
                                      const void* const*, void* const*, const void*, int, int, const char*, void*) {
  using namespace virtual_npu;
  constexpr int kGraphEngineFailure = 500002;
  const bool is_float_status = std::strstr(type, "FloatStatus") != nullptr;
  const bool is_refused = config().card == Card::k950 || (is_float_status && !config().float_status);
  return is_refused ? kGraphEngineFailure : 0;
}
