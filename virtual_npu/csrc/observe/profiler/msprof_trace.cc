// The Chrome trace. Each task has a launch in CANN's rows, connected by an arrow to the task itself in the rows of
// the hardware or of HCCL.
#include <unistd.h>

#include <map>
#include <set>
#include <utility>

#include "observe/profiler/msprof_tree.h"

namespace virtual_npu {
namespace profiler {
namespace {

// msprof's processes. The numbers of each device follow in steps.
enum Process { kCann = 0, kHardware = 1, kHccl = 2, kMemory = 3 };
constexpr int kProcessesOfDevice = 3;

class Trace {
 public:
  void process(Process kind, int device) {
    const uint64_t pid = pid_of(kind, device);
    if (!processes_.insert(pid).second) return;
    static const char* const kNames[] = {"CANN", "Ascend Hardware", "HCCL", "NPU MEM"};
    const std::string label =
        kind == kCann ? "CPU" : "NPU " + std::to_string(device) + ": virtual, computed by the host";
    meta("process_name", pid, 0, "\"name\":" + quoted(kNames[kind]));
    meta("process_labels", pid, 0, "\"labels\":" + quoted(label));
    meta("process_sort_index", pid, 0, "\"sort_index\":" + std::to_string(10 + kind + kProcessesOfDevice * device));
  }

  void add(const Task& task, uint64_t connection) {
    const std::string id = std::to_string(connection);
    const uint64_t cann = pid_of(kCann, 0), thread = task.thread;
    process(kCann, 0);
    row(cann, thread, "Thread " + std::to_string(thread));
    complete("Node@launch", cann, thread, task.launch_start, task.launch_end,
             "\"Thread Id\":" + std::to_string(thread) +
                 ",\"Mode\":\"launch\",\"level\":\"node\",\"id\":\"0\",\"item_id\":" + quoted(task.name) + ",\"connection_id\":" + id);
    flow("s", id, cann, thread, task.launch_start, "");

    const bool collective = task.type == TaskType::kHccl;
    const Process kind = collective ? kHccl : kHardware;
    const uint64_t pid = pid_of(kind, task.device);
    process(kind, task.device);
    row(pid, task.stream, collective ? "Group " + task.group + " Communication" : "Stream " + std::to_string(task.stream));
    complete(call_name(task), pid, task.stream, task.start, task.end,
             (collective ? of_collective(task) : of_hardware(task, connection)) + ",\"connection_id\":" + id);
    flow("f", id, pid, task.stream, task.start, ",\"bp\":\"e\"");
  }

  void add(const MemorySample& sample) {
    process(kMemory, sample.device);
    event("{\"name\":\"APP/HBM\",\"pid\":" + std::to_string(pid_of(kMemory, sample.device)) +
          ",\"tid\":0,\"ts\":" + quoted(microseconds(sample.time)) + ",\"args\":{\"allocated(KB)\":" +
          std::to_string(sample.allocated / 1024) + ",\"reserved(KB)\":" + std::to_string(sample.reserved / 1024) +
          "},\"ph\":\"C\"}");
  }

  std::string text() const { return "[" + text_ + "\n]\n"; }

 private:
  static uint64_t pid_of(Process kind, int device) {
    return uint64_t(getpid()) * 100 + kind + (kind == kCann ? 0 : kProcessesOfDevice * device);
  }

  static std::string of_hardware(const Task& task, uint64_t number) {
    std::string args = "\"Model Id\":4294967295,\"Task Type\":" + quoted(name_of(task.type)) +
                       ",\"Physic Stream Id\":" + std::to_string(task.stream) + ",\"Task Id\":" +
                       std::to_string(number) + ",\"Batch Id\":0,\"Subtask Id\":4294967295";
    if (task.bytes) args += ",\"size(B)\":" + std::to_string(task.bytes);
    return args + call_site(task);
  }

  static std::string of_collective(const Task& task) {
    return "\"Model Id\":4294967295,\"Task Type\":\"HCCL\",\"group\":" + quoted(task.group) + ",\"ranks\":" +
           std::to_string(task.ranks) + ",\"data_type\":" + quoted(task.wire_dtype) + ",\"count\":" +
           std::to_string(task.elements) + ",\"size(B)\":" + std::to_string(task.bytes) +
           ",\"link type\":" + quoted(task.links) + call_site(task);
  }

  static std::string call_site(const Task& task) {
    return task.call_site.empty() ? "" : ",\"Call Site\":" + quoted(task.call_site);
  }

  void row(uint64_t pid, uint64_t tid, const std::string& name) {
    if (!rows_.insert({pid, tid}).second) return;
    meta("thread_name", pid, tid, "\"name\":" + quoted(name));
    meta("thread_sort_index", pid, tid, "\"sort_index\":" + std::to_string(tid));
  }

  void meta(const char* name, uint64_t pid, uint64_t tid, const std::string& args) {
    event(std::string("{\"name\":\"") + name + "\",\"pid\":" + std::to_string(pid) + ",\"tid\":" +
          std::to_string(tid) + ",\"args\":{" + args + "},\"ph\":\"M\"}");
  }

  void complete(const std::string& name, uint64_t pid, uint64_t tid, uint64_t start, uint64_t end,
                const std::string& args) {
    event("{\"name\":" + quoted(name) + ",\"pid\":" + std::to_string(pid) + ",\"tid\":" + std::to_string(tid) +
          ",\"ts\":" + quoted(microseconds(start)) + ",\"dur\":" + microseconds(end - start) + ",\"args\":{" + args +
          "},\"ph\":\"X\"}");
  }

  void flow(const char* phase, const std::string& id, uint64_t pid, uint64_t tid, uint64_t time,
            const std::string& more) {
    event("{\"name\":\"HostToDevice" + id + "\",\"ph\":\"" + phase + "\",\"id\":\"" + id + "\",\"pid\":" +
          std::to_string(pid) + ",\"tid\":" + std::to_string(tid) + ",\"cat\":\"HostToDevice\",\"ts\":" +
          quoted(microseconds(time)) + more + "}");
  }

  void event(const std::string& json) {
    if (!text_.empty()) text_ += ",";
    text_ += "\n" + json;
  }

  std::string text_;
  std::set<uint64_t> processes_;
  std::set<std::pair<uint64_t, uint64_t>> rows_;
};

}  // namespace

std::string chrome_trace(const Recorded& recorded) {
  Trace trace;
  uint64_t connection = 0;
  for (const Task& task : recorded.tasks) trace.add(task, ++connection);
  for (const MemorySample& sample : recorded.memory) trace.add(sample);
  return trace.text();
}

}  // namespace profiler
}  // namespace virtual_npu
