// Device memory: host memory counted against the capacity of one device.
//
// In dry mode, it is address space only: a page uses memory when it is written.
//
// Freed blocks are kept for reuse, up to a quarter of a device's capacity, because fresh pages cost more than most
// kernels: the operating system must clear each page at its first access.
#pragma once
#include <cstddef>

namespace virtual_npu {

// The address of `size` bytes on `device`, 64-byte aligned, or nullptr if they exceed the device's capacity or the
// host is out of memory.
void* allocate(int device, size_t size);
void release(int device, void* address, size_t size);

// Bytes in use by Paddle. Blocks kept for reuse count as free.
size_t used_bytes(int device);

}  // namespace virtual_npu
