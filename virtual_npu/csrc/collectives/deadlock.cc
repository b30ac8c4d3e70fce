#include "collectives/deadlock.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "collectives/segment.h"
#include "runtime/file_descriptor.h"
#include "runtime/stream.h"

namespace virtual_npu {
namespace {

struct Status {
  uint64_t version;  // odd while it is being written
  int64_t since;
  uint32_t waits;
  uint32_t count;
  Awaited awaited[kMaxRanks];
  char text[1024];
};

struct Page {
  std::mutex mutex;
  ProcessId owner;
  int file = -1;
};
// A forked process creates its own page.
Page& page() {
  static auto* page = new Page;
  return *page;
}

// Created at the first call. The mutex is held.
int file_of(Page& own) {
  const ProcessId process = this_process();
  if (own.file < 0 || !(own.owner == process)) {
    own.file = memfd_create("virtual_npu_status", MFD_CLOEXEC);
    own.owner = process;
  }
  return own.file;
}

bool put(int file, const Status& status) {
  return pwrite(file, &status, sizeof(status), 0) == ssize_t(sizeof(status));
}

// Returns false if the process does not wait, or if its page is unreadable or changing.
bool get(const Awaited& awaited, Status* status) {
  const std::string path =
      "/proc/" + std::to_string(awaited.process.number) + "/fd/" + std::to_string(awaited.status_file);
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return false;
  uint64_t version = 0;
  const bool whole = pread(file.number(), status, sizeof(*status), 0) == ssize_t(sizeof(*status)) &&
                     pread(file.number(), &version, sizeof(version), 0) == ssize_t(sizeof(version));
  return whole && version == status->version && version % 2 == 0 && status->waits && status->count <= kMaxRanks &&
         state_of(awaited.process) != ProcessState::kGone;
}

void write_page(const std::string& text, int64_t since, const std::vector<Awaited>& awaited, bool waits) {
  Page& own = page();
  std::lock_guard<std::mutex> lock(own.mutex);
  static uint64_t version = 0;
  const int file = file_of(own);
  Status status{};
  status.since = since;
  status.waits = waits;
  status.count = uint32_t(awaited.size());
  std::copy(awaited.begin(), awaited.end(), status.awaited);
  std::strncpy(status.text, text.c_str(), sizeof(status.text) - 1);
  for (int i = 0; i < 2; ++i) {  // the first write lets readers detect a torn read of the second one
    status.version = ++version;
    put(file, status);
  }
}

// Whether a path from `from` reaches a process on `path`. `found` then describes the waits along it.
bool leads_back(const Awaited& from, std::vector<ProcessId>& path, std::string* found) {
  if (std::find(path.begin(), path.end(), from.process) != path.end()) return true;
  Status status;
  if (path.size() > 4 * kMaxRanks || !get(from, &status)) return false;
  path.push_back(from.process);
  for (uint32_t i = 0; i < status.count; ++i) {
    std::string further;
    if (!leads_back(status.awaited[i], path, &further)) continue;
    status.text[sizeof(status.text) - 1] = 0;
    *found = "; " + std::string(status.text) + further;
    return true;
  }
  path.pop_back();
  return false;
}

}  // namespace

int status_file() {
  std::lock_guard<std::mutex> lock(page().mutex);
  return file_of(page());
}

bool publish_status(const std::string& text, int64_t since, const std::vector<Awaited>& awaited) {
  if (!program_waits_for_this_thread()) return false;
  write_page(text, since, awaited, true);
  return true;
}

void withdraw_status() { write_page("", 0, {}, false); }

std::string find_cycle(const std::vector<Awaited>& awaited) {
  for (const Awaited& one : awaited) {
    std::vector<ProcessId> path;
    if (program_waits_for_this_thread()) path.push_back(this_process());
    std::string found;
    if (leads_back(one, path, &found)) return found;
  }
  return "";
}

}  // namespace virtual_npu
