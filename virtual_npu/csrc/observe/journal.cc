#include "observe/journal.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "paddle/phi/common/memory_utils.h"
#include "paddle/phi/core/enforce.h"
#include "observe/profiler/msprof_tree.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace journal {
namespace {

using profiler::quoted;

// Each process of a job has a separate file.
std::string file_name() {
  const char *ranks = std::getenv("PADDLE_TRAINERS_NUM"), *rank = std::getenv("PADDLE_TRAINER_ID");
  const bool several = ranks && rank && std::atoi(ranks) > 1;
  return several ? config().journal + "." + rank : config().journal;
}

// Opened by the first line, so a program that only starts others writes none.
struct JournalFile {
  std::mutex mutex;
  std::FILE* file = nullptr;
  bool at_exit = false;  // nothing later would flush
  std::map<const void*, int> streams;
  std::string failure;  // the first failure, after which no line is written
};
JournalFile& journal_file() {
  static auto* file = new JournalFile;
  return *file;
}
std::atomic<bool> failed{false};

// The mutex is held.
void fail(const std::string& reason) {
  if (failed) return;
  journal_file().failure = "The journal " + file_name() + " (VIRTUAL_NPU_JOURNAL) cannot be written: " + reason +
                           ". Use a file in an existing folder with free space, or unset the variable.";
  failed = true;
  // Printed immediately, because the program may not launch another operator.
  std::fprintf(stderr, "virtual npu: %s\n", journal_file().failure.c_str());
}

// The mutex is held.
void flush_locked() {
  JournalFile& journal = journal_file();
  if (journal.file && !failed && std::fflush(journal.file) != 0) fail(std::strerror(errno));
}

void flush_at_exit() {
  std::lock_guard<std::mutex> lock(journal_file().mutex);
  journal_file().at_exit = true;
  flush_locked();
}

// The mutex is held.
void write_locked(const std::string& line) {
  JournalFile& journal = journal_file();
  if (!journal.file) {
    journal.file = std::fopen(file_name().c_str(), "w");
    if (!journal.file) return fail(std::strerror(errno));
    std::atexit(flush_at_exit);
  }
  if (std::fprintf(journal.file, "%s\n", line.c_str()) < 0) return fail(std::strerror(errno));
  if (journal.at_exit) flush_locked();
}

// Writes the result of `line()`. Destructors and deleters also write lines, so a failure is stored and thrown by the
// next operator launch.
template <typename Line>
void write(const Line& line) noexcept {
  if (failed) return;
  try {
    const std::string text = line();
    std::lock_guard<std::mutex> lock(journal_file().mutex);
    write_locked(text);
  } catch (const std::exception& error) {
    std::lock_guard<std::mutex> lock(journal_file().mutex);
    fail(error.what());
  }
}

// The failure, or nullptr.
const char* failure() {
  if (!failed) return nullptr;
  std::lock_guard<std::mutex> lock(journal_file().mutex);
  return journal_file().failure.c_str();  // never changes again
}

int number_of(const void* stream) {
  if (!stream) return 0;
  JournalFile& journal = journal_file();
  std::lock_guard<std::mutex> lock(journal.mutex);
  return journal.streams.try_emplace(stream, int(journal.streams.size()) + 1).first->second;
}

thread_local Operator* open_operator = nullptr;

}  // namespace

bool is_kept() { return !config().journal.empty(); }

void allocate(uint64_t id, uint64_t bytes, const std::string& by) {
  write([&] {
    return "{\"event\":\"allocate\",\"id\":" + std::to_string(id) + ",\"bytes\":" + std::to_string(bytes) +
           ",\"by\":" + quoted(by) + "}";
  });
}

void free(uint64_t id) {
  write([&] { return "{\"event\":\"free\",\"id\":" + std::to_string(id) + "}"; });
}

void copy(const char* kind, uint64_t bytes) {
  write([&] {
    return std::string("{\"event\":\"copy\",\"kind\":\"") + kind + "\",\"bytes\":" + std::to_string(bytes) + "}";
  });
}

void collective(const Collective& call) {
  write([&] {
    return "{\"event\":\"collective\",\"kind\":" + quoted(call.kind) + ",\"group\":" + quoted(call.group) +
           ",\"ranks\":" + std::to_string(call.ranks) + ",\"peer\":" + std::to_string(call.peer) + ",\"dtype\":" +
           quoted(call.dtype) + ",\"elements\":" + std::to_string(call.elements) + ",\"bytes\":" +
           std::to_string(call.bytes) + ",\"stream\":" + std::to_string(number_of(call.stream)) + "}";
  });
}

void mark(const std::string& text) {
  write([&] { return "{\"event\":\"mark\",\"text\":" + quoted(text) + "}"; });
}

const char* flush() {
  {
    std::lock_guard<std::mutex> lock(journal_file().mutex);
    flush_locked();
  }
  return failure();
}

Operator::Operator(const std::string& name, const std::string& dtype, const char* placement, int device)
    : name_(name), dtype_(dtype), placement_(placement), device_(device) {
  if (const char* reason = failure()) PADDLE_THROW(common::errors::External("%s", reason));
  open_operator = this;
}

Operator::~Operator() {
  open_operator = nullptr;
  write([&] {
    const int64_t allocated = phi::memory_utils::DeviceMemoryStatCurrentValue("Allocated", device_);
    return "{\"event\":\"operator\",\"name\":" + quoted(name_) + ",\"dtype\":" + quoted(dtype_) +
           ",\"placement\":\"" + placement_ + "\",\"inputs\":[" + inputs_ + "],\"outputs\":[" + outputs_ +
           "],\"allocated\":" + std::to_string(allocated) + "}";
  });
}

Operator* Operator::open() { return open_operator; }

void Operator::add(phi::DataType dtype, const phi::DDim& dims, std::string* list) {
  *list += std::string(list->empty() ? "" : ",") + "[\"" + phi::DataTypeToString(dtype) + "\",[";
  for (int i = 0; i < dims.size(); ++i) *list += (i ? "," : "") + std::to_string(dims[i]);
  *list += "]]";
}

void Operator::add_input(const phi::TensorBase* tensor) {
  if (tensor && phi::DenseTensor::classof(tensor)) add_input(tensor->dtype(), tensor->dims());
}

void Operator::add_output(const phi::TensorBase* tensor) {
  if (tensor && phi::DenseTensor::classof(tensor)) add_output(tensor->dtype(), tensor->dims());
}

}  // namespace journal
}  // namespace virtual_npu

// For virtual_npu.mark_journal() and flush_journal(): why the journal cannot be written, or nullptr.
extern "C" const char* virtual_npu_journal_mark(const char* text) {
  using namespace virtual_npu::journal;
  if (is_kept()) mark(text);
  return failure();
}
extern "C" const char* virtual_npu_journal_flush() { return virtual_npu::journal::flush(); }
