// The rules of paddle_fused/contracts in C++. The build writes the constants (contracts_header.py) in the namespaces
// rules, limits and dtypes; "attention.head_dim" becomes attention_head_dim. Error messages use these texts.
#pragma once
#include <cstdint>

#include "paddle/phi/common/data_type.h"

namespace virtual_npu {
namespace contract {

// A value that differs between CANN releases. `since` is the release's index in kReleases.
template <typename T>
struct ByRelease {
  T value;
  int since;
  T later;
};

// CANN's error number, or 0 if a call never reaches CANN.
struct ErrorNumber {
  int number;
  const char* name;
};

struct Rule {
  ByRelease<ErrorNumber> error;
  const char* accepts;  // the text after "accepted: "
  const char* advice;
};

// Both names are accepted: 8.1.RC1 and 8.1.
struct Release {
  const char* name;
  const char* short_name;
};

// The default release for a value of VIRTUAL_NPU_CARD.
struct CardDefault {
  const char* card;
  const char* release;
};

#include "contracts.inc"

}  // namespace contract

// The index in kReleases of the emulated release (VIRTUAL_NPU_CANN). Throws InvalidArgument for unknown values.
int emulated_release();

template <typename T>
const T& at_release(const contract::ByRelease<T>& changed) {
  return emulated_release() < changed.since ? changed.value : changed.later;
}

}  // namespace virtual_npu
