// Dry mode: tracks which bytes of the device have the same values as on a card.
//
// Small data that the program copies to the device is known. Small kernels on known values are executed, so their
// results are known as well. Everything else is unknown: it reads as zeros, and reading integers or bools from it is
// an error, because the control flow of the program could depend on them.
#pragma once
#include <cstddef>
#include <string>

#include "paddle/phi/core/dense_tensor.h"

namespace virtual_npu {
namespace dry {

// The largest tensors, in bytes, whose values are tracked. Integers and bools are the tokens, labels, positions and
// masks of a batch, which decide shapes and branches: 8 rows of 131,072 tokens in int64 are 8 MiB.
constexpr size_t kSmall = size_t{64} << 10, kSmallIntegers = size_t{8} << 20;

// The limit for tensors of a dtype.
size_t small(phi::DataType dtype);

void set_known(const void* address, size_t size);
void set_unknown(const void* address, size_t size, phi::DataType dtype, const std::string& by);
void set_known(const phi::DenseTensor& tensor);
void set_unknown(const phi::DenseTensor& tensor, const std::string& by);

bool is_known(const void* address, size_t size);
// Whether the tensor is small and completely known.
bool is_known(const phi::DenseTensor& tensor);

// Copies between the host and a device, or within a device.
void to_device(void* to, const void* from, size_t size);
// For unknown integers and bools, throws phi's Unimplemented with the operator that would have computed them.
void to_host(void* to, const void* from, size_t size);
void on_device(void* to, const void* from, size_t size);
void fill(void* at, unsigned char value, size_t size);

// Throws the same error if an operator is about to read unknown values of `what` on the host.
void check_known(const char* op, const char* what, const phi::DenseTensor& tensor);

}  // namespace dry
}  // namespace virtual_npu
