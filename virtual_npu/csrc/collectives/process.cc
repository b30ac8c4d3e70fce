#include "collectives/process.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

namespace virtual_npu {
namespace {

struct Description {
  bool known = false;
  char state = 'X';
  uint64_t started = 0;
};

// An emulated process (qemu's user mode) reads a later start time of itself than others do, by the startup time of
// the emulator. A pid is not reused within this number of ticks, of which there are 100 per second.
constexpr uint64_t kSameStart = 500;

// /proc/N/stat: number (name) state parent ..., where field 22 is the start time. The name may contain anything. The
// state
// is unknown if the file cannot be read although the process may exist: this process may have too many open files.
Description read(int number) {
  Description found;
  char text[1024];
  std::FILE* file = std::fopen(("/proc/" + std::to_string(number) + "/stat").c_str(), "re");
  if (!file) {
    found.known = errno == ENOENT || errno == ESRCH;
    return found;
  }
  errno = 0;
  const size_t length = std::fread(text, 1, sizeof(text) - 1, file);
  found.known = length > 0 || errno == ESRCH;  // the process may exit between open and read
  std::fclose(file);
  text[length] = 0;
  const char* field = std::strrchr(text, ')');
  if (!field) return found;
  found.state = field[2];
  field += 2;  // the third field
  for (int i = 3; i < 22 && field; ++i) field = std::strchr(field + 1, ' ');
  if (field) std::sscanf(field, "%lu", &found.started);
  return found;
}

}  // namespace

ProcessId this_process() {
  static std::atomic<uint64_t> started;
  static std::atomic<int> known;  // the pid that `started` belongs to, which differs in a forked child
  const int number = getpid();
  if (known.load() == number) return {number, started.load()};
  const Description own = read(number);
  if (!own.known || !own.started)
    throw std::runtime_error("/proc/" + std::to_string(number) + "/stat cannot be read: " + std::strerror(errno) +
                             ". It identifies processes; allow more open files (ulimit -n).");
  started.store(own.started);
  known.store(number);
  return {number, own.started};
}

ProcessState state_of(const ProcessId& process) {
  const Description found = read(process.number);
  if (!found.known) return ProcessState::kRuns;
  const uint64_t apart = found.started > process.started ? found.started - process.started
                                                         : process.started - found.started;
  if (apart > kSameStart || std::strchr("ZXx", found.state)) return ProcessState::kGone;
  return std::strchr("Tt", found.state) ? ProcessState::kStopped : ProcessState::kRuns;
}

}  // namespace virtual_npu
