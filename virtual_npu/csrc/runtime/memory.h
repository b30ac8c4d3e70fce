// Device memory: host memory that is counted against the capacity of one device.
//
// In dry mode it is address space only: a page becomes memory when it is written.
//
// Blocks that Paddle gives back are kept, up to a quarter of a device's capacity, and handed out again, because fresh
// pages cost more than most kernels: the operating system must clear each one at its first touch.
#pragma once
#include <cstddef>

namespace virtual_npu {

// The address of `size` bytes on `device`, 64-byte aligned, or nullptr if the device's capacity does not allow it
// or the host has no memory left.
void* allocate(int device, size_t size);
void release(int device, void* address, size_t size);

// Bytes in use by Paddle; what is kept for reuse counts as free.
size_t used_bytes(int device);

}  // namespace virtual_npu
