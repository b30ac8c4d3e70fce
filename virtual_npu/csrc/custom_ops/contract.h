// The rules of paddle_fused/contracts in C++. The build writes the constants (contracts_header.py): the namespaces
// rules, limits and dtypes, where "attention.head_dim" is attention_head_dim. Refusals take their sentences from here.
#pragma once
#include <cstdint>

#include "paddle/phi/common/data_type.h"

namespace virtual_npu {
namespace contract {

// `error` is CANN's number, or 0 where a call is refused before it reaches CANN.
struct Rule {
  int error;
  const char* error_name;
  const char* accepts;  // finishes the sentence "accepted: ..."
  const char* advice;
};

// A limit that is another one from the CANN level `major`.`minor` on.
struct LaterLimit {
  int64_t value;
  int major, minor;
  int64_t later;
};

#include "contracts.inc"

}  // namespace contract

// The limit at the CANN level that is emulated (VIRTUAL_NPU_CANN).
int64_t at_cann_level(const contract::LaterLimit& limit);

}  // namespace virtual_npu
