// The journal: the device's work in order, as JSON lines in the file VIRTUAL_NPU_JOURNAL (with several ranks
// FILE.<rank>). Real and dry runs write the same events, so they can be compared.
//
//   {"event":"operator","name":"matmul","dtype":"bfloat16","placement":"npu","inputs":[["bfloat16",[2,3]],...],
//    "outputs":[...],"allocated":4096}        allocated: bytes in use by all tensors of the device
//   {"event":"allocate","id":7,"bytes":512,"by":"matmul"}      {"event":"free","id":7}
//   {"event":"copy","kind":"MemcpyHtoD","bytes":64}
//   {"event":"collective","kind":"all_reduce","group":"...","ranks":2,"peer":0,"dtype":"float32","elements":16,
//    "bytes":64,"stream":0}                   stream 0 is the compute stream
//   {"event":"mark","text":"step 1 begins"}   from the program
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "paddle/phi/common/data_type.h"
#include "paddle/phi/core/dense_tensor.h"

namespace virtual_npu {
namespace journal {

// If the file cannot be written (for example because the disk is full), the reason is printed once, no more lines are
// written, and every later operator launch throws the error.

// Whether a journal is written. The functions below may be called only if it is, and do not throw.
bool is_kept();

void allocate(uint64_t id, uint64_t bytes, const std::string& by);
void free(uint64_t id);
void copy(const char* kind, uint64_t bytes);
struct Collective {
  std::string kind, group, dtype;
  int ranks, peer;
  uint64_t elements, bytes;
  const void* stream;  // nullptr: the compute stream
};
void collective(const Collective& call);
void mark(const std::string& text);
// Writes all lines so far to the file. Returns the reason if this fails, or nullptr.
const char* flush();

// An operator call on the calling thread, from its launch to the end of the object's lifetime, when its line is
// written. Nested calls are not journaled.
class Operator {
 public:
  // Throws a Paddle error if the journal cannot be written.
  Operator(const std::string& name, const std::string& dtype, const char* placement, int device);
  ~Operator();
  Operator(const Operator&) = delete;

  // The open one on the calling thread, or nullptr.
  static Operator* open();

  const std::string& name() const { return name_; }
  // Its outputs are its allocations; add_output is not called.
  void outputs_are_its_allocations() { puts_out_its_allocations_ = true; }
  bool puts_out_its_allocations() const { return puts_out_its_allocations_; }
  void add_input(phi::DataType dtype, const phi::DDim& dims) { add(dtype, dims, &inputs_); }
  void add_output(phi::DataType dtype, const phi::DDim& dims) { add(dtype, dims, &outputs_); }
  void add_input(const phi::TensorBase* tensor);
  void add_output(const phi::TensorBase* tensor);

 private:
  static void add(phi::DataType dtype, const phi::DDim& dims, std::string* list);

  const std::string name_, dtype_;
  const char* const placement_;
  const int device_;
  bool puts_out_its_allocations_ = false;
  std::string inputs_, outputs_;
};

}  // namespace journal
}  // namespace virtual_npu
