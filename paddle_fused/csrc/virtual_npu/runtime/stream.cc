#include "virtual_npu/runtime/stream.h"

#include <new>

// Paddle tells streams and events apart by their addresses only.
struct C_Stream_st {
  int device;
};
struct C_Event_st {
  int device;
};

namespace virtual_npu {
namespace {

C_Status create_stream(const C_Device device, C_Stream* stream) {
  *stream = new (std::nothrow) C_Stream_st{device->id};
  return *stream ? C_SUCCESS : C_FAILED;
}
C_Status destroy_stream(const C_Device, C_Stream stream) {
  delete stream;
  return C_SUCCESS;
}
C_Status stream_add_callback(const C_Device device, C_Stream stream, C_Callback callback, void* user_data) {
  C_Status status = C_SUCCESS;
  callback(device, stream, user_data, &status);
  return status;
}
C_Status create_event(const C_Device device, C_Event* event) {
  *event = new (std::nothrow) C_Event_st{device->id};
  return *event ? C_SUCCESS : C_FAILED;
}
C_Status destroy_event(const C_Device, C_Event event) {
  delete event;
  return C_SUCCESS;
}
C_Status finished_device(const C_Device) { return C_SUCCESS; }
C_Status finished_stream(const C_Device, C_Stream) { return C_SUCCESS; }
C_Status finished_event(const C_Device, C_Event) { return C_SUCCESS; }
C_Status order_event(const C_Device, C_Stream, C_Event) { return C_SUCCESS; }

}  // namespace

void fill_stream_interface(C_DeviceInterface* interface) {
  interface->create_stream = create_stream;
  interface->destroy_stream = destroy_stream;
  interface->query_stream = finished_stream;
  interface->stream_add_callback = stream_add_callback;
  interface->create_event = create_event;
  interface->destroy_event = destroy_event;
  interface->record_event = order_event;
  interface->query_event = finished_event;
  interface->synchronize_device = finished_device;
  interface->synchronize_stream = finished_stream;
  interface->synchronize_event = finished_event;
  interface->stream_wait_event = order_event;
}

}  // namespace virtual_npu
