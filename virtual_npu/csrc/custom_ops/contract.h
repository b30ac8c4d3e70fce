// The rules of paddle_fused/contracts in C++. The build writes the constants (contracts_header.py): the namespaces
// rules, limits and dtypes, where "attention.head_dim" is attention_head_dim. Refusals take their sentences from here.
#pragma once
#include <cstdint>

#include "paddle/phi/common/data_type.h"

namespace virtual_npu {
namespace contract {

// What a release of CANN changed; `since` is the release's index in kReleases.
template <typename T>
struct ByRelease {
  T value;
  int since;
  T later;
};

// CANN's number, or 0 where a call is refused before it reaches CANN.
struct ErrorNumber {
  int number;
  const char* name;
};

struct Rule {
  ByRelease<ErrorNumber> error;
  const char* accepts;  // finishes the sentence "accepted: ..."
  const char* advice;
};

// Both names are accepted: 8.1.RC1 and 8.1.
struct Release {
  const char* name;
  const char* short_name;
};

// The release that is emulated by default for a value of VIRTUAL_NPU_CARD.
struct CardDefault {
  const char* card;
  const char* release;
};

#include "contracts.inc"

}  // namespace contract

// The index in kReleases of the release that is emulated (VIRTUAL_NPU_CANN). Throws InvalidArgument for other values.
int emulated_release();

template <typename T>
const T& at_release(const contract::ByRelease<T>& changed) {
  return emulated_release() < changed.since ? changed.value : changed.later;
}

}  // namespace virtual_npu
