#include "observe/profiler/msprof_tree.h"

#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace virtual_npu {
namespace profiler {
namespace {

namespace fs = std::filesystem;

constexpr char kDefaultFolder[] = "ascend_profiling";  // the default of paddle-custom-npu

fs::path profiling_folder() {
  const char* folder = std::getenv("FLAGS_npu_profiling_dir");
  return folder && *folder ? folder : kDefaultFolder;
}

std::string local_time(uint64_t nanoseconds, bool with_milliseconds) {
  const time_t seconds = nanoseconds / 1000000000;
  tm parts;
  localtime_r(&seconds, &parts);
  char text[32];
  const size_t length = strftime(text, sizeof(text), "%Y%m%d%H%M%S", &parts);
  if (with_milliseconds)
    std::snprintf(text + length, sizeof(text) - length, "%03d", int(nanoseconds / 1000000 % 1000));
  return text;
}

// Distinguishes folders that several processes create in the same millisecond.
std::string letters(uint64_t number) {
  std::string text;
  for (int i = 0; i < 8; ++i, number /= 26) text += char('A' + number % 26);
  return text;
}

void write(const fs::path& file, const std::string& text) {
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  stream.close();
  if (!stream)
    throw std::runtime_error("The profile cannot be written to " + file.string() + ": " + std::strerror(errno) +
                             ". FLAGS_npu_profiling_dir sets the folder.");
}

std::string about(const Recorded& recorded) {
  const char* rank = std::getenv("PADDLE_TRAINER_ID");
  return "{\n  \"device\": \"virtual NPU\",\n  \"is_card\": false,\n"
         "  \"about\": \"Recorded on a virtual NPU, which computes on the host's processor. Not a card: durations "
         "do not predict those of a card.\",\n"
         "  \"process\": " + std::to_string(getpid()) + ",\n"
         "  \"rank\": " + quoted(rank ? rank : "0") + ",\n"
         "  \"start_us\": " + quoted(microseconds(recorded.start)) + ",\n"
         "  \"end_us\": " + quoted(microseconds(recorded.end)) + ",\n"
         "  \"tasks\": " + std::to_string(recorded.tasks.size()) + "\n}\n";
}

}  // namespace

std::string microseconds(uint64_t nanoseconds) {
  char text[40];
  std::snprintf(text, sizeof(text), "%llu.%03llu", static_cast<unsigned long long>(nanoseconds / 1000),
                static_cast<unsigned long long>(nanoseconds % 1000));
  return text;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", c);
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string call_name(const Task& task) {
  if (task.type != TaskType::kHccl) return task.name;
  const std::string suffix = task.group.size() > 3 ? task.group.substr(task.group.size() - 3) : task.group;
  return task.name + "_" + suffix + "_" + std::to_string(task.number) + "_1";
}

std::string write_msprof_tree(const Recorded& recorded) {
  const std::string when = local_time(recorded.end, false);
  const fs::path folder = profiling_folder() / ("PROF_000001_" + local_time(recorded.start, true) + "_" +
                                                letters(recorded.start / 1000 * 31 + uint64_t(getpid())));
  const fs::path output = folder / "mindstudio_profiler_output";
  std::error_code error;
  fs::create_directories(output, error);
  if (error)
    throw std::runtime_error("The profile's folder " + output.string() + " cannot be created: " + error.message() +
                             ". FLAGS_npu_profiling_dir sets its parent folder.");
  write(folder / "info.json", about(recorded));
  write(output / ("msprof_" + when + ".json"), chrome_trace(recorded));
  write(output / ("op_summary_" + when + ".csv"), op_summary(recorded.tasks));
  write(output / ("op_statistic_" + when + ".csv"), op_statistic(recorded.tasks));
  write(output / ("memory_record_" + when + ".csv"), memory_record(recorded.memory));
  return folder.string();
}

}  // namespace profiler
}  // namespace virtual_npu
