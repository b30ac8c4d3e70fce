// The entry points of thunks.S for C++, and their count for the assembler.
#pragma once

#define VIRTUAL_NPU_THUNKS 10240

#if !defined(__ASSEMBLER__)
#include <cstdint>

namespace virtual_npu {

#if defined(__aarch64__)
constexpr int kIntegerRegisters = 8;
#else
constexpr int kIntegerRegisters = 6;
#endif
constexpr int kFloatRegisters = 8;
constexpr int kThunkBytes = 16;

// The argument registers at the entry of a thunk. A float argument is in the low half of its double.
struct Registers {
  uint64_t integers[kIntegerRegisters];
  double floats[kFloatRegisters];
};

}  // namespace virtual_npu

extern "C" const char virtual_npu_thunks[];

namespace virtual_npu {
inline void* thunk_address(int number) {
  return const_cast<char*>(virtual_npu_thunks + static_cast<long>(number) * kThunkBytes);
}
}  // namespace virtual_npu
#endif
