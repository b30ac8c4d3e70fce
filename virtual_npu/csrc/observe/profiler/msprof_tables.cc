// op_summary, op_statistic and memory_record, with msprof's columns. Columns from the performance counters of a
// card's cores are omitted, because there are no such counters here.
#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>
#include <utility>

#include "observe/profiler/msprof_tree.h"

namespace virtual_npu {
namespace profiler {
namespace {

constexpr char kSummaryColumns[] =
    "Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,OP State,Task Type,Task Start Time(us),Task Duration(us),"
    "Task Wait Time(us),Block Dim,Mix Block Dim,HF32 Eligible,Input Shapes,Input Data Types,Input Formats,"
    "Output Shapes,Output Data Types,Output Formats,Context ID";
constexpr char kStatisticColumns[] =
    "Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)";
constexpr char kNoModel[] = "4294967295";

std::string field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + '"';
}

// Shapes are in separate quotes, so spreadsheets do not parse 2,3 as a number.
std::string tensors(const Tensors& all) {
  if (all.empty()) return "N/A,N/A,N/A";
  return field('"' + all.shapes() + '"') + "," + all.dtypes() + "," + all.formats();
}

std::string decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f", value);
  return text;
}

std::vector<const Task*> by_start(const std::vector<Task>& tasks) {
  std::vector<const Task*> sorted;
  for (const Task& task : tasks)
    if (task.type != TaskType::kMemcpy) sorted.push_back(&task);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Task* a, const Task* b) { return a->start < b->start; });
  return sorted;
}

}  // namespace

std::string op_summary(const std::vector<Task>& tasks) {
  const auto sorted = by_start(tasks);
  const bool sites =
      std::any_of(tasks.begin(), tasks.end(), [](const Task& task) { return !task.call_site.empty(); });
  std::string text = kSummaryColumns;
  text += sites ? ",Call Site\n" : "\n";
  std::map<std::pair<int, int>, uint64_t> ends;  // of the last task on each device's streams
  uint64_t number = 0;
  for (const Task* task : sorted) {
    uint64_t& last = ends[{task->device, task->stream}];
    const uint64_t wait = last && task->start > last ? task->start - last : 0;
    last = std::max(last, task->end);
    ++number;
    // A card splits a collective into tasks on several streams, so msprof gives it no stream.
    const bool collective = task->type == TaskType::kHccl;
    text += std::to_string(task->device) + "," + kNoModel + ",";
    text += collective ? "N/A,N/A," : std::to_string(number) + "," + std::to_string(task->stream) + ",";
    text += field(call_name(*task)) + "," + field(task->name) + "," + (collective ? "N/A" : "dynamic") + ",";
    // The tab, as in msprof's tables, keeps spreadsheets from rounding.
    text += std::string(name_of(task->type)) + "," + microseconds(task->start) + "\t,";
    text += microseconds(task->end - task->start) + "," + microseconds(wait) + ",0,0,NO,";
    text += tensors(task->inputs) + "," + tensors(task->outputs) + ",N/A";
    text += sites ? "," + field(task->call_site) + "\n" : "\n";
  }
  return text;
}

std::string op_statistic(const std::vector<Task>& tasks) {
  struct Sum {
    uint64_t count = 0, total = 0, least = ~uint64_t{0}, most = 0;
  };
  std::map<std::tuple<int, std::string, std::string>, Sum> sums;
  uint64_t all = 0;
  for (const Task* task : by_start(tasks)) {
    Sum& sum = sums[{task->device, task->name, name_of(task->type)}];
    const uint64_t duration = task->end - task->start;
    ++sum.count;
    sum.total += duration;
    sum.least = std::min(sum.least, duration);
    sum.most = std::max(sum.most, duration);
    all += duration;
  }
  std::vector<const decltype(sums)::value_type*> sorted;
  for (const auto& row : sums) sorted.push_back(&row);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto* a, const auto* b) { return a->second.total > b->second.total; });
  std::string text = std::string(kStatisticColumns) + "\n";
  for (const auto* row : sorted) {
    const auto& [device, name, core] = row->first;
    const Sum& sum = row->second;
    text += std::to_string(device) + "," + field(name) + "," + core + "," + std::to_string(sum.count) + ",";
    text += microseconds(sum.total) + "," + microseconds(sum.least) + "," + decimal(1e-3 * sum.total / sum.count);
    text += "," + microseconds(sum.most) + "," + decimal(all ? 100.0 * sum.total / all : 0) + "\n";
  }
  return text;
}

std::string memory_record(const std::vector<MemorySample>& memory) {
  std::string text = "Device_id,Component,Timestamp(us),Total Allocated(KB),Total Reserved(KB),Device\n";
  for (const MemorySample& sample : memory) {
    const std::string device = std::to_string(sample.device);
    text += device + ",PADDLE," + microseconds(sample.time) + "\t," + decimal(sample.allocated / 1024.0) + ",";
    text += decimal(sample.reserved / 1024.0) + ",NPU:" + device + "\n";
  }
  return text;
}

}  // namespace profiler
}  // namespace virtual_npu
