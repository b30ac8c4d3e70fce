// Tests the thunks of the bridge (virtual_npu/csrc/bridge/thunks.S) without Paddle: the entry point behind a thunk
// must find the caller's arguments in the registers and on the stack, according to the processor's calling
// convention.
//
// Integers and floating-point numbers alternate, and there are more of each than registers. Both kinds are therefore
// interleaved on the stack, in the order of the call.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bridge/thunks.h"

namespace {

constexpr int kEach = 12;  // the number of integers and of floating-point numbers
static_assert(kEach > virtual_npu::kIntegerRegisters && kEach > virtual_npu::kFloatRegisters);
constexpr double kRefused = -1;

int failures = 0, calls = 0;
int expected_number;
double scale;

int64_t integer(int i) { return (int64_t{1} << 40) + 1000 * expected_number + i; }
double number(int i) { return scale * (expected_number + i + 0.5); }

void check(bool holds, const char* what, int i) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "thunk %d: %s %d is wrong\n", expected_number, what, i);
}

template <typename T>
T at(const uint64_t* slot) {
  T value;
  std::memcpy(&value, slot, sizeof value);
  return value;
}

template <size_t... I>
void call(void* thunk, std::index_sequence<I...>) {
  // One integer and one double for each I. The compiler assigns them to registers and the stack.
  using Pairs = void (*)(decltype((void)I, int64_t())..., decltype((void)I, double())...);
  reinterpret_cast<Pairs>(thunk)(integer(I)..., number(I)...);
}

void call_in_turn(void* thunk) {
  using InTurn = void (*)(int64_t, double, int64_t, double, int64_t, double, int64_t, double, int64_t, double, int64_t,
                          double, int64_t, double, int64_t, double, int64_t, double, int64_t, double, int64_t, double,
                          int64_t, double);
  reinterpret_cast<InTurn>(thunk)(integer(0), number(0), integer(1), number(1), integer(2), number(2), integer(3),
                                  number(3), integer(4), number(4), integer(5), number(5), integer(6), number(6),
                                  integer(7), number(7), integer(8), number(8), integer(9), number(9), integer(10),
                                  number(10), integer(11), number(11));
}

bool in_turn;

}  // namespace

extern "C" void virtual_npu_bridge_entry(int thunk, const virtual_npu::Registers* registers,
                                         const uint64_t* stack_arguments) {
  using namespace virtual_npu;
  ++calls;
  check(thunk == expected_number, "thunk number", thunk);
  check(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) % 16 == 0, "stack alignment in call", calls);
  for (int i = 0; i < kIntegerRegisters; ++i)
    check(static_cast<int64_t>(registers->integers[i]) == integer(i), "integer in a register", i);
  for (int i = 0; i < kFloatRegisters; ++i) check(registers->floats[i] == number(i), "floating-point register", i);
  const uint64_t* slot = stack_arguments;
  const auto check_integer = [&](int i) {
    if (i >= kIntegerRegisters) check(at<int64_t>(slot++) == integer(i), "integer on the stack", i);
  };
  const auto check_number = [&](int i) {
    if (i >= kFloatRegisters) check(at<double>(slot++) == number(i), "floating-point number on the stack", i);
  };
  for (int i = 0; i < kEach; ++i) {
    check_integer(i);
    if (in_turn) check_number(i);
  }
  for (int i = 0; i < kEach && !in_turn; ++i) check_number(i);
  if (scale == kRefused) throw std::invalid_argument("like a kernel that rejects its tensors");
}

int main() {
  std::vector<int> thunks;
  for (int i = 0; i < VIRTUAL_NPU_THUNKS; i += 97) thunks.push_back(i);
  thunks.push_back(VIRTUAL_NPU_THUNKS - 1);
  for (int thunk : thunks)
    for (double each : {1.0, kRefused})
      for (bool mixed : {false, true}) {
        expected_number = thunk, scale = each, in_turn = mixed;
        bool thrown = false;
        try {
          if (mixed)
            call_in_turn(virtual_npu::thunk_address(thunk));
          else
            call(virtual_npu::thunk_address(thunk), std::make_index_sequence<kEach>());
        } catch (const std::invalid_argument&) {
          thrown = true;  // through the thunk's frame
        }
        check(thrown == (each == kRefused), "exception in call", calls);
      }
  const int wanted = 4 * static_cast<int>(thunks.size());
  std::printf("%d calls of %zu thunks with %d integers and %d floating-point numbers: %d failures\n", calls,
              thunks.size(), kEach, kEach, failures);
  return failures == 0 && calls == wanted ? 0 : 1;
}
