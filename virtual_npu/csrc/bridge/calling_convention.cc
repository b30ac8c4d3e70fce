#include "bridge/calling_convention.h"

#include <cstdint>
#include <stdexcept>
#include <string>

#include "paddle/phi/common/place.h"
#include "bridge/kernel_entry.h"
#include "bridge/thunks.h"

namespace virtual_npu {
namespace {

using phi::DataType;
using phi::Place;

constexpr char kName[] = "calling_convention";
constexpr int64_t kWide = (int64_t{0x12345678} << 32) + 0x9abcdef0;

// An address that is passed and compared, but never dereferenced, because it may be wrong.
const void* address(int i) { return reinterpret_cast<const void*>(kWide + i); }
Place place() { return Place(phi::AllocationType::CUSTOM, 5, "npu"); }

// Names of the arguments received with a wrong value.
std::string& wrong() {
  static auto* names = new std::string;
  return *names;
}

template <typename T>
void expect(const char* argument, const T& received, const T& sent) {
  if (!(received == sent)) wrong() += (wrong().empty() ? "" : ", ") + std::string(argument);
}

// The argument types of phi kernels, in a similar order. References are passed as addresses.
void receive(const void* context, bool flag, int small, Place where, int64_t wide, float f0, DataType dtype, double f1,
             int negative, float f2, const void* a, double f3, bool last_flag, float f4, Place where_on_stack, double f5,
             int64_t negative_wide, float f6, const void* b, double f7, const void* c) {
  expect("the context", context, address(0));
  expect("a bool", flag, true);
  expect("an int", small, 123456789);
  expect("a Place", where, place());
  expect("an int64", wide, kWide);
  expect("float 0", f0, 0.5f);
  expect("a DataType", dtype, DataType::BFLOAT16);
  expect("double 1", f1, 1.1);
  expect("a negative int", negative, -7);
  expect("float 2", f2, 2.5f);
  expect("pointer 1", a, address(1));
  expect("double 3", f3, -3.1);
  expect("the second bool", last_flag, false);
  expect("float 4", f4, 4.5f);
  expect("the second Place", where_on_stack, place());
  expect("double 5", f5, 5.1);
  expect("a negative int64", negative_wide, -kWide);
  expect("float 6", f6, -6.5f);
  expect("pointer 2", b, address(2));
  expect("double 7", f7, 7.1);
  expect("pointer 3", c, address(3));
}
constexpr int kIntegerSlots = 15;  // a Place uses two

}  // namespace

void check_calling_convention() {
  const int number = entry_count();
  KernelEntry& entry = new_entry(kName, DataType::UNDEFINED);
  entry.without_tensors = true;
  entry.variadic_function = reinterpret_cast<void*>(&receive);
  entry.signature.integer_slots = kIntegerSlots;
  const auto call = reinterpret_cast<decltype(&receive)>(thunk_address(number));
  call(address(0), true, 123456789, place(), kWide, 0.5f, DataType::BFLOAT16, 1.1, -7, 2.5f, address(1), -3.1, false, 4.5f,
       place(), 5.1, -kWide, -6.5f, address(2), 7.1, address(3));
  if (wrong().empty()) return;
  throw std::runtime_error("the bridge to Paddle's CPU kernels passes wrong arguments on this machine: " + wrong() +
                           ". Rebuild this project, or set VIRTUAL_NPU_BRIDGE=0 to load without these kernels.");
}

}  // namespace virtual_npu
