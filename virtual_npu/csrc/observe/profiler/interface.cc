#include "observe/profiler/interface.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "paddle/phi/api/profiler/trace_event.h"
#include "paddle/phi/core/enforce.h"
#include "observe/profiler/msprof_tree.h"
#include "observe/profiler/recording.h"

namespace virtual_npu {
namespace {

using profiler::Recorded;
using profiler::Task;
using profiler::TaskType;

// The last profile's recording, between its end and Paddle's request for it.
Recorded& last() {
  static auto* last = new Recorded;
  return *last;
}

C_Status initialize(C_Profiler, void** user_data) {
  *user_data = nullptr;
  return C_SUCCESS;
}
C_Status finalize(C_Profiler, void*) { return C_SUCCESS; }
C_Status prepare(C_Profiler, void*) { return C_SUCCESS; }

C_Status start(C_Profiler, void*) {
  last() = Recorded{};
  profiler::start_recording();
  return C_SUCCESS;
}

C_Status stop(C_Profiler, void*) {
  if (!profiler::recording()) return C_SUCCESS;
  last() = profiler::stop_recording();
  try {
    profiler::write_msprof_tree(last());
  } catch (const std::runtime_error& error) {
    PADDLE_THROW(common::errors::Unavailable("%s", error.what()));
  }
  return C_SUCCESS;
}

// libpaddle has these functions, but the plugin is not linked to it.
using AddEvent = void (*)(C_Profiler, void*);
AddEvent function_of_paddle(const char* name) {
  void* library = dlopen("libpaddle.so", RTLD_NOW | RTLD_NOLOAD);
  void* function = library ? dlsym(library, name) : nullptr;
  if (!function) PADDLE_THROW(common::errors::NotFound("Paddle has no function %s; the profile has no kernels.", name));
  return reinterpret_cast<AddEvent>(function);
}

std::string event_name(const Task& task) {
  switch (task.type) {
    case TaskType::kHccl:
      return "xccl " + call_name(task);  // Paddle's summary recognizes communication by this word
    case TaskType::kAiCpu:
    case TaskType::kHostCpu:
      return task.name + " [" + name_of(task.type) + "]";
    default:
      return task.name;
  }
}

const char* launch_name(TaskType type) {
  return type == TaskType::kHccl ? "npuLaunchCollective" : type == TaskType::kMemcpy ? "npuMemcpy" : "npuLaunchKernel";
}

phi::DeviceTraceEvent device_event(const Task& task, uint32_t correlation) {
  phi::DeviceTraceEvent event;
  event.name = event_name(task);
  event.start_ns = task.start;
  event.end_ns = task.end;
  event.device_id = task.device;
  event.context_id = 0;
  event.stream_id = task.stream;
  event.correlation_id = correlation;
  if (task.type == TaskType::kMemcpy) {
    event.type = phi::TracerEventType::Memcpy;
    std::memset(&event.memcpy_info, 0, sizeof(event.memcpy_info));
    event.memcpy_info.num_bytes = task.bytes;
    std::strncpy(event.memcpy_info.copy_kind, task.name.c_str(), phi::kMemKindMaxLen - 1);
  } else {
    event.type = phi::TracerEventType::Kernel;
    std::memset(&event.kernel_info, 0, sizeof(event.kernel_info));
  }
  return event;
}

C_Status collect(C_Profiler paddle, uint64_t start_ns, void*) {
  const AddEvent add_runtime = function_of_paddle("profiler_add_runtime_trace_event");
  const AddEvent add_device = function_of_paddle("profiler_add_device_trace_event");
  const Recorded recorded = std::move(last());
  last() = Recorded{};
  uint32_t correlation = 0;
  for (const Task& task : recorded.tasks) {
    if (task.launch_start < start_ns) continue;
    ++correlation;
    phi::RuntimeTraceEvent launch(launch_name(task.type), task.launch_start, task.launch_end, getpid(), task.thread,
                                  correlation, 0);
    add_runtime(paddle, &launch);
    phi::DeviceTraceEvent work = device_event(task, correlation);
    add_device(paddle, &work);
  }
  return C_SUCCESS;
}

}  // namespace

void fill_profiler_interface(C_DeviceInterface* interface) {
  interface->profiler_initialize = initialize;
  interface->profiler_finalize = finalize;
  interface->profiler_prepare_tracing = prepare;
  interface->profiler_start_tracing = start;
  interface->profiler_stop_tracing = stop;
  interface->profiler_collect_trace_data = collect;
}

}  // namespace virtual_npu
