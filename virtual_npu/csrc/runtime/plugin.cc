// InitPlugin, which Paddle calls when it finds this library in CUSTOM_DEVICE_ROOT. It registers the device type "npu".
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "framework/paddle_release.h"
#include "kernels/isa.h"
#include "paddle/phi/backends/device_ext.h"
#include "bridge/calling_convention.h"
#include "bridge/install.h"
#include "checks/launch.h"
#include "checks/synchronizations.h"
#include "collectives/interface.h"
#include "dry/known_values.h"
#include "observe/copy.h"
#include "observe/host_fallback.h"
#include "observe/profiler/interface.h"
#include "observe/python_module.h"
#include "runtime/config.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/stream.h"
#include "runtime/version_check.h"

namespace virtual_npu {
namespace {

thread_local int chosen_device = 0;

constexpr char kHostToDevice[] = "MemcpyHtoD", kDeviceToHost[] = "MemcpyDtoH";

void copy_bytes(void* to, const void* from, size_t size) { std::memcpy(to, from, size); }

bool exists(const C_Device device) { return device->id >= 0 && device->id < config().devices; }

C_Status succeed() { return C_SUCCESS; }
C_Status set_device(const C_Device device) {
  if (!exists(device)) return C_ERROR;
  chosen_device = device->id;
  return C_SUCCESS;
}
C_Status get_device(const C_Device device) {
  device->id = chosen_device;
  return C_SUCCESS;
}
C_Status deinit_device(const C_Device) { return C_SUCCESS; }
C_Status get_device_count(size_t* count) {
  *count = size_t(config().devices);
  return C_SUCCESS;
}
C_Status get_device_list(size_t* devices) {
  for (int i = 0; i < config().devices; ++i) devices[i] = size_t(i);
  return C_SUCCESS;
}

// For Paddle, a null address with C_SUCCESS means "out of memory": it frees its cached blocks, retries and then raises
// ResourceExhaustedError. C_FAILED would raise an OSError without sizes.
C_Status device_memory_allocate(const C_Device device, void** address, size_t size) {
  *address = allocate(device->id, size);
  return C_SUCCESS;
}
C_Status device_memory_deallocate(const C_Device device, void* address, size_t size) {
  release(device->id, address, size);
  return C_SUCCESS;
}
C_Status device_memory_set(const C_Device, void* address, unsigned char value, size_t size) {
  if (config().dry)
    dry::fill(address, value, size);
  else
    std::memset(address, value, size);
  return C_SUCCESS;
}
C_Status host_memory_allocate(const C_Device, void** address, size_t size) {
  *address = std::aligned_alloc(64, (size + 63) / 64 * 64);
  return *address ? C_SUCCESS : C_FAILED;
}
C_Status host_memory_deallocate(const C_Device, void* address, size_t) {
  std::free(address);
  return C_SUCCESS;
}
C_Status copy_to_device(const C_Device device, void* to, const void* from, size_t size) {
  checks::synchronizes(checks::Wait::kCopyToDevice, size);
  observe_copy(kHostToDevice, device->id, size,
               [=] { config().dry ? dry::to_device(to, from, size) : copy_bytes(to, from, size); });
  return C_SUCCESS;
}
C_Status copy_to_host(const C_Device device, void* to, const void* from, size_t size) {
  checks::synchronizes(checks::Wait::kCopyToHost, size);
  observe_copy(kDeviceToHost, device->id, size,
               [=] { config().dry ? dry::to_host(to, from, size) : copy_bytes(to, from, size); });
  return C_SUCCESS;
}
// A copy of the host, or of `stream` unless it is null, for the checks.
void check_copy(const char* name, C_Stream stream, const void* device_memory, size_t size, bool writes) {
  if (config().checks) checks::use_memory(name, stream, {{device_memory, size, writes, "device memory"}});
}
C_Status memory_copy_h2d(const C_Device device, void* to, const void* from, size_t size) {
  check_copy(kHostToDevice, nullptr, to, size, true);
  return copy_to_device(device, to, from, size);
}
C_Status memory_copy_d2h(const C_Device device, void* to, const void* from, size_t size) {
  check_copy(kDeviceToHost, nullptr, from, size, false);
  return copy_to_host(device, to, from, size);
}
C_Status memory_copy_d2d(const C_Device device, void* to, const void* from, size_t size) {
  copy_on_device(nullptr, device->id, to, from, size);
  return C_SUCCESS;
}
// Copies from and to the host first wait until the stream is empty.
C_Status async_memory_copy_h2d(const C_Device device, C_Stream stream, void* to, const void* from, size_t size) {
  check_copy(kHostToDevice, stream, to, size, true);
  before_kernel(stream);
  return copy_to_device(device, to, from, size);
}
C_Status async_memory_copy_d2h(const C_Device device, C_Stream stream, void* to, const void* from, size_t size) {
  check_copy(kDeviceToHost, stream, from, size, false);
  before_kernel(stream);
  return copy_to_host(device, to, from, size);
}
C_Status async_memory_copy_d2d(const C_Device device, C_Stream stream, void* to, const void* from, size_t size) {
  copy_on_device(stream, device->id, to, from, size);
  return C_SUCCESS;
}
C_Status memory_copy_p2p(const C_Device to_device, const C_Device, void* to, const void* from, size_t size) {
  return memory_copy_d2d(to_device, to, from, size);
}
C_Status async_memory_copy_p2p(const C_Device to_device, const C_Device, C_Stream stream, void* to, const void* from,
                               size_t size) {
  copy_on_device(stream, to_device->id, to, from, size);
  return C_SUCCESS;
}
C_Status device_memory_stats(const C_Device device, size_t* total, size_t* free) {
  *total = config().memory_bytes;
  *free = *total - used_bytes(device->id);
  return C_SUCCESS;
}
C_Status device_min_chunk_size(const C_Device, size_t* size) {
  *size = 512;
  return C_SUCCESS;
}
// Without these functions, Layer.float16() and Layer.bfloat16() silently do nothing.
C_Status low_precision_supported(const C_Device, bool* supported) {
  *supported = true;
  return C_SUCCESS;
}

void fill_device_interface(C_DeviceInterface* interface) {
  interface->initialize = succeed;
  interface->finalize = succeed;
  interface->init_device = set_device;
  interface->set_device = set_device;
  interface->get_device = get_device;
  interface->deinit_device = deinit_device;
  interface->get_device_count = get_device_count;
  interface->get_device_list = get_device_list;
  interface->device_memory_stats = device_memory_stats;
  interface->device_min_chunk_size = device_min_chunk_size;
  paddle_release::set_low_precision(interface, low_precision_supported);
}

void fill_memory_interface(C_DeviceInterface* interface) {
  interface->device_memory_allocate = device_memory_allocate;
  interface->device_memory_deallocate = device_memory_deallocate;
  interface->unified_memory_allocate = device_memory_allocate;
  interface->unified_memory_deallocate = device_memory_deallocate;
  interface->host_memory_allocate = host_memory_allocate;
  interface->host_memory_deallocate = host_memory_deallocate;
  interface->device_memory_set = device_memory_set;
  interface->memory_copy_h2d = memory_copy_h2d;
  interface->memory_copy_d2h = memory_copy_d2h;
  interface->memory_copy_d2d = memory_copy_d2d;
  interface->memory_copy_p2p = memory_copy_p2p;
  interface->async_memory_copy_h2d = async_memory_copy_h2d;
  interface->async_memory_copy_d2h = async_memory_copy_d2h;
  interface->async_memory_copy_d2d = async_memory_copy_d2d;
  interface->async_memory_copy_p2p = async_memory_copy_p2p;
}

}  // namespace

int current_device() { return chosen_device; }
void choose_device(int device) { chosen_device = device; }

}  // namespace virtual_npu

extern "C" void InitPlugin(CustomRuntimeParams* params) {
  using namespace virtual_npu;
  // With an empty device_type, Paddle continues without this plugin. An exception would terminate the process.
  try {
    const std::string foreign = foreign_paddle();
    if (!foreign.empty()) {
      std::fprintf(stderr, "virtual npu: not loaded: %s\n", foreign.c_str());
      return;
    }
    config();
    paddle_fused::kernels::active_isa();
    if (config().bridge) check_calling_convention();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "virtual npu: not loaded: %s\n", error.what());
    return;
  }
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
  params->device_type = const_cast<char*>("npu");
  params->sub_device_type = const_cast<char*>("virtual");
  C_DeviceInterface* interface = params->interface;
  const size_t size = interface->size;
  std::memset(static_cast<void*>(interface), 0, sizeof(C_DeviceInterface));
  interface->size = size;
  fill_device_interface(interface);
  fill_stream_interface(interface);
  fill_memory_interface(interface);
  fill_collective_interface(interface);
  fill_profiler_interface(interface);
  try {
    if (config().bridge) install_bridge();
    if (config().warns) start_fallback_warnings();
    if (config().counts_waits) start_python_module("synchronizations", "no counts of synchronizations");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "virtual npu: not loaded: %s\n", error.what());
    params->device_type = nullptr;
  }
}
