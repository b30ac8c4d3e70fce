// The stream and event functions that Paddle calls.
#include <algorithm>
#include <cstring>
#include <new>
#include <unordered_set>

#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/enforce.h"
#include "checks/clocks.h"
#include "checks/launch.h"
#include "checks/synchronizations.h"
#include "dry/known_values.h"
#include "observe/copy.h"
#include "runtime/config.h"
#include "runtime/stream.h"

// Paddle identifies streams and events by address only.
struct C_Stream_st {
  std::shared_ptr<virtual_npu::Stream> stream;
};
struct C_Event_st {
  std::mutex mutex;
  virtual_npu::Mark mark;
};

namespace virtual_npu {
namespace {

// All existing streams, to wait for a device. Never destroyed, because Paddle destroys streams after the plugin's
// statics.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Stream>> streams;
  std::unordered_set<C_Stream> handles;
};
Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

std::vector<std::shared_ptr<Stream>> streams_on(int device) {
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<std::shared_ptr<Stream>> found;
  for (const auto& one : all.streams)
    if (auto stream = one.lock(); stream && stream->device() == device) found.push_back(std::move(stream));
  return found;
}

template <typename Wait>
C_Status waited(const Wait& wait) {
  try {
    wait();
  } catch (const StreamError& error) {
    raise(error);
  }
  return C_SUCCESS;
}

C_Status create_stream(const C_Device device, C_Stream* stream) {
  auto made = std::make_shared<Stream>(device->id);
  *stream = new C_Stream_st{made};
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto gone = [](const std::weak_ptr<Stream>& one) { return one.expired(); };
  all.streams.erase(std::remove_if(all.streams.begin(), all.streams.end(), gone), all.streams.end());
  all.streams.push_back(made);
  all.handles.insert(*stream);
  return C_SUCCESS;
}

// Also called when a context is destroyed, so it must neither throw nor wait forever for ranks that never arrive.
C_Status destroy_stream(const C_Device, C_Stream stream) {
  if (!stream) return C_SUCCESS;
  stream->stream->wait_for(stream->stream->last(), config().collective_timeout);
  stream->stream->stop();
  {
    Registry& all = registry();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.handles.erase(stream);
  }
  if (config().checks) checks::stream_is_gone(stream);
  delete stream;
  return C_SUCCESS;
}
bool exists(C_Stream stream) {
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  return all.handles.count(stream) > 0;
}
C_Status query_stream(const C_Device, C_Stream stream) {
  if (stream) stream->stream->release(stream->stream->last());
  return stream && stream->stream->busy() ? C_FAILED : C_SUCCESS;
}
C_Status stream_add_callback(const C_Device device, C_Stream stream, C_Callback callback, void* user_data) {
  C_Status status = C_SUCCESS;
  if (!stream || !stream->stream->busy()) {
    callback(device, stream, user_data, &status);
    return status;
  }
  stream->stream->submit([=] {
    C_Status ignored = C_SUCCESS;
    callback(device, stream, user_data, &ignored);
  });
  return C_SUCCESS;
}

C_Status create_event(const C_Device, C_Event* event) {
  *event = new (std::nothrow) C_Event_st;
  return *event ? C_SUCCESS : C_FAILED;
}
C_Status destroy_event(const C_Device, C_Event event) {
  if (config().checks) checks::event_is_gone(event);
  delete event;
  return C_SUCCESS;
}
C_Status record_event(const C_Device, C_Stream stream, C_Event event) {
  if (config().checks) checks::event_is_recorded(event, stream);
  std::lock_guard<std::mutex> lock(event->mutex);
  event->mark = stream ? Mark{stream->stream, stream->stream->last()} : Mark{};
  return C_SUCCESS;
}
Mark mark_of(C_Event event) {
  std::lock_guard<std::mutex> lock(event->mutex);
  return event->mark;
}
// Failed work counts as finished. Called in destructors, so it must not throw.
C_Status query_event(const C_Device, C_Event event) {
  const Mark mark = mark_of(event);
  if (mark.stream) mark.stream->release(mark.ticket);
  if (!mark.passed()) return C_FAILED;
  if (config().checks) checks::event_is_found_complete(event);
  return C_SUCCESS;
}

C_Status synchronize_device(const C_Device device) {
  checks::synchronizes(checks::Wait::kDevice);
  return waited([&] {
    const auto streams = streams_on(device->id);
    for (const auto& stream : streams) stream->wait_for(stream->last(), 1e9);
    for (const auto& stream : streams) stream->throw_unheard_failure();
    if (config().checks) checks::host_waits_for_all_streams();
  });
}
C_Status synchronize_stream(const C_Device, C_Stream stream) {
  checks::synchronizes(checks::Wait::kStream);
  return waited([&] {
    if (stream) stream->stream->drain();
    if (config().checks) checks::host_waits_for_stream(stream);
  });
}
C_Status synchronize_event(const C_Device, C_Event event) {
  checks::synchronizes(checks::Wait::kEvent);
  return waited([&] {
    mark_of(event).wait();
    if (config().checks) checks::host_waits_for_event(event);
  });
}
C_Status stream_wait_event(const C_Device, C_Stream stream, C_Event event) {
  const Mark mark = mark_of(event);
  if (config().checks) checks::stream_waits(stream, event);
  if (!mark.stream || (stream && mark.stream == stream->stream)) return C_SUCCESS;
  if (mark.passed() || (is_compute_stream(stream) && !config().defer)) return waited([&] { mark.wait(); });
  stream->stream->submit([mark] { mark.wait(); });
  return C_SUCCESS;
}

}  // namespace

std::shared_ptr<Stream> stream_of(C_Stream stream) { return stream ? stream->stream : nullptr; }

bool is_compute_stream(C_Stream stream) {
  if (!stream) return true;
  const phi::CustomPlace place("npu", stream->stream->device());
  auto* context = static_cast<phi::CustomContext*>(phi::DeviceContextPool::Instance().Get(place));
  return reinterpret_cast<C_Stream>(context->stream()) == stream;
}

void raise(const StreamError& error) { PADDLE_THROW(common::errors::Unavailable("%s", error.what())); }

// Paddle's CPU kernels for sparse tensors copy from a device with a "stream" that they read from a CPUContext as if it
// were a device context. The pointer must not be dereferenced before it is known to be a stream.
bool is_busy(C_Stream stream) { return any_stream_is_busy() && exists(stream) && stream->stream->busy(); }

void before_kernel(C_Stream stream) {
  if (is_busy(stream)) waited([&] { stream->stream->drain(); });
}

void finish_deferred_work(int device) {
  if (!config().defer || !any_stream_is_busy()) return;
  const phi::CustomPlace place("npu", device);
  auto* context = static_cast<phi::CustomContext*>(phi::DeviceContextPool::Instance().Get(place));
  before_kernel(reinterpret_cast<C_Stream>(context->stream()));
}

void copy_on_device(C_Stream stream, int device, void* to, const void* from, size_t size) {
  checks::queues_work();
  if (config().checks)
    checks::use_memory(kDeviceToDevice, stream, {{from, size, false, "device memory"}, {to, size, true, "device memory"}});
  const auto copy = [=] {
    if (config().dry)
      dry::on_device(to, from, size);
    else
      std::memcpy(to, from, size);
  };
  if (is_busy(stream) && (config().defer || !is_compute_stream(stream))) {
    Stream& queue = *stream->stream;
    if (profiler::recording())
      queue.submit(profiler::recorded_copy(kDeviceToDevice, device, size, &queue, copy));
    else
      queue.submit(copy);
    return;
  }
  before_kernel(stream);
  observe_copy(kDeviceToDevice, device, size, copy);
}

void fill_stream_interface(C_DeviceInterface* interface) {
  interface->create_stream = create_stream;
  interface->destroy_stream = destroy_stream;
  interface->query_stream = query_stream;
  interface->stream_add_callback = stream_add_callback;
  interface->create_event = create_event;
  interface->destroy_event = destroy_event;
  interface->record_event = record_event;
  interface->query_event = query_event;
  interface->synchronize_device = synchronize_device;
  interface->synchronize_stream = synchronize_stream;
  interface->synchronize_event = synchronize_event;
  interface->stream_wait_event = stream_wait_event;
}

}  // namespace virtual_npu
