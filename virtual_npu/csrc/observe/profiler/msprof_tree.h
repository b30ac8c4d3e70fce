// Writes a recording as the files that `msprof --export=on` creates from a card's profile:
//
//   <FLAGS_npu_profiling_dir>/PROF_000001_<time>_<letters>/
//     info.json                                 states that this is not a card
//     mindstudio_profiler_output/
//       msprof_<time>.json                      Chrome trace: launches, tasks of each stream, collectives, memory
//       op_summary_<time>.csv                   one line per kernel and collective
//       op_statistic_<time>.csv                 their sums
//       memory_record_<time>.csv                memory in use
//
// Times are microseconds since 1970 with three decimals, on the host's clock, like those of Paddle's events.
#pragma once
#include <string>
#include <vector>

#include "observe/profiler/recording.h"

namespace virtual_npu {
namespace profiler {

// Throws std::runtime_error with a full sentence if the folder cannot be written. Returns the path of the PROF
// folder.
std::string write_msprof_tree(const Recorded& recorded);

// Parts of it.
std::string microseconds(uint64_t nanoseconds);
std::string chrome_trace(const Recorded& recorded);
std::string op_summary(const std::vector<Task>& tasks);
std::string op_statistic(const std::vector<Task>& tasks);
std::string memory_record(const std::vector<MemorySample>& memory);
std::string quoted(const std::string& text);  // a JSON string
// The name of one call. A collective's name includes its group and number.
std::string call_name(const Task& task);

}  // namespace profiler
}  // namespace virtual_npu
