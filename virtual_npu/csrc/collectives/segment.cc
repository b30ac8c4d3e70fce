#include "collectives/segment.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <utility>

namespace virtual_npu {
namespace {

constexpr size_t kPage = 4096;

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Segments created by this process that other ranks may still open: name and descriptor. A name ends in the
// descriptor; the part before it is the file's name.
struct Made {
  std::mutex mutex;
  std::map<std::string, FileDescriptor> files;
};
Made& made() {
  static auto* made = new Made;
  return *made;
}

std::runtime_error refused(const std::string& what) {
  return std::runtime_error("The shared memory of a group cannot be " + what + ": " + std::strerror(errno) + ".");
}

struct Name {
  ProcessId maker;
  std::string of_file;
  int file = -1;

  explicit Name(const std::string& text) : of_file(text.substr(0, text.rfind('_'))) {
    unsigned random = 0;
    if (std::sscanf(text.c_str(), "virtual_npu_%d_%lu_%x_%d", &maker.number, &maker.started, &random, &file) != 4)
      throw std::runtime_error("'" + text + "' is not the id of a group of virtual NPUs.");
  }
};

std::string target_of(const std::string& link) {
  char target[256];
  const ssize_t length = readlink(link.c_str(), target, sizeof(target));
  return std::string(target, length > 0 ? size_t(length) : 0);
}

FileDescriptor open_segment(const std::string& text) {
  {
    std::lock_guard<std::mutex> lock(made().mutex);
    const auto own = made().files.find(text);
    if (own != made().files.end()) return FileDescriptor(fcntl(own->second.number(), F_DUPFD_CLOEXEC, 0));
  }
  const Name name(text);
  const std::string path = "/proc/" + std::to_string(name.maker.number) + "/fd/" + std::to_string(name.file);
  // O_PATH has no effect on the file, because the descriptor may belong to another file by now.
  const FileDescriptor found(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!found.is_open() && errno != ENOENT && errno != ESRCH) throw refused("opened");
  const std::string own_path = "/proc/self/fd/" + std::to_string(found.number());
  if (found.is_open() && target_of(own_path) == "/memfd:" + name.of_file + " (deleted)")
    return FileDescriptor(open(own_path.c_str(), O_RDWR | O_CLOEXEC));
  throw std::runtime_error("The group " + text + " cannot be joined: its first rank, process " +
                           std::to_string(name.maker.number) + ", " +
                           (state_of(name.maker) == ProcessState::kGone
                                ? "has exited or is on another host."
                                : "has closed it, because all ranks have joined. A restarted rank needs a new "
                                  "group."));
}

}  // namespace

std::string Segment::create() {
  std::random_device random;
  const ProcessId process = this_process();
  char of_file[80];
  std::snprintf(of_file, sizeof(of_file), "virtual_npu_%d_%lu_%08x", process.number, process.started, random());
  FileDescriptor file(memfd_create(of_file, MFD_CLOEXEC));
  if (!file.is_open()) throw refused("made");
  const std::string name = std::string(of_file) + "_" + std::to_string(file.number());
  std::lock_guard<std::mutex> lock(made().mutex);
  made().files.emplace(name, std::move(file));
  return name;
}

ProcessId Segment::maker(const std::string& name) { return Name(name).maker; }

void Segment::all_have_joined(const std::string& name) {
  std::lock_guard<std::mutex> lock(made().mutex);
  made().files.erase(name);
}

Segment::Segment(const std::string& name, int ranks) : ranks_(ranks), file_(open_segment(name)) {
  const size_t header = whole_pages(sizeof(Header));
  mapped_ = header + size_t(ranks) * 2 * kChunk;
  // Every rank sets the same size.
  if (!file_.is_open() || ftruncate(file_.number(), off_t(mapped_ + size_t(ranks) * ranks * kRegion)) != 0) throw refused("sized");
  address_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.number(), 0);
  if (address_ == MAP_FAILED) throw refused("mapped");
  chunks_ = static_cast<char*>(address_) + header;
}

Segment::~Segment() { munmap(address_, mapped_); }

off_t Segment::position(int from, int to, uint64_t offset) const {
  return off_t(mapped_ + (size_t(from) * ranks_ + to) * kRegion + offset);
}

void Segment::write(int from, int to, uint64_t offset, const void* data, size_t bytes) {
  const char* source = static_cast<const char*>(data);
  for (off_t at = position(from, to, offset); bytes > 0;) {
    const ssize_t done = pwrite(file_.number(), source, bytes, at);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw refused("written");
    source += done, at += done, bytes -= size_t(done);
  }
}

void Segment::read(int from, int to, uint64_t offset, void* data, size_t bytes) {
  char* destination = static_cast<char*>(data);
  for (off_t at = position(from, to, offset); bytes > 0;) {
    const ssize_t done = pread(file_.number(), destination, bytes, at);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) throw refused("read");
    destination += done, at += done, bytes -= size_t(done);
  }
}

void Segment::forget(int from, int to, uint64_t offset, size_t bytes) {
  const uint64_t begin = std::max<uint64_t>(offset, kKeptBytes), end = offset + whole_pages(bytes);
  if (begin >= end) return;
  fallocate(file_.number(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, position(from, to, begin), off_t(end - begin));
}

}  // namespace virtual_npu
