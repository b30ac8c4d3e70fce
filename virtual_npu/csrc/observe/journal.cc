#include "observe/journal.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>

#include "paddle/phi/common/memory_utils.h"
#include "observe/profiler/msprof_tree.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace journal {
namespace {

using profiler::quoted;

// Each process of a job has a file of its own.
std::string file_name() {
  const char *ranks = std::getenv("PADDLE_TRAINERS_NUM"), *rank = std::getenv("PADDLE_TRAINER_ID");
  const bool several = ranks && rank && std::atoi(ranks) > 1;
  return several ? config().journal + "." + rank : config().journal;
}

// Opened by the first line: a program that only starts others writes none. stdio flushes it at exit.
struct JournalFile {
  std::mutex mutex;
  std::FILE* file = nullptr;
  std::map<const void*, int> streams;
};
JournalFile& journal_file() {
  static auto* file = new JournalFile;
  return *file;
}

void write(const std::string& line) {
  JournalFile& journal = journal_file();
  std::lock_guard<std::mutex> lock(journal.mutex);
  if (!journal.file) {
    journal.file = std::fopen(file_name().c_str(), "w");
    if (!journal.file)
      throw std::runtime_error("VIRTUAL_NPU_JOURNAL names " + file_name() +
                               ", which cannot be written; give a file in a folder that exists.");
  }
  std::fprintf(journal.file, "%s\n", line.c_str());
}

int number_of(const void* stream) {
  if (!stream) return 0;
  JournalFile& journal = journal_file();
  std::lock_guard<std::mutex> lock(journal.mutex);
  return journal.streams.try_emplace(stream, int(journal.streams.size()) + 1).first->second;
}

thread_local Operator* open_operator = nullptr;

}  // namespace

void flush() {
  std::lock_guard<std::mutex> lock(journal_file().mutex);
  if (journal_file().file) std::fflush(journal_file().file);
}

bool is_kept() { return !config().journal.empty(); }

void allocate(uint64_t id, uint64_t bytes, const std::string& by) {
  write("{\"event\":\"allocate\",\"id\":" + std::to_string(id) + ",\"bytes\":" + std::to_string(bytes) +
        ",\"by\":" + quoted(by) + "}");
}

void free(uint64_t id) { write("{\"event\":\"free\",\"id\":" + std::to_string(id) + "}"); }

void copy(const char* kind, uint64_t bytes) {
  write(std::string("{\"event\":\"copy\",\"kind\":\"") + kind + "\",\"bytes\":" + std::to_string(bytes) + "}");
}

void collective(const Collective& call) {
  write("{\"event\":\"collective\",\"kind\":" + quoted(call.kind) + ",\"group\":" + quoted(call.group) + ",\"ranks\":" +
        std::to_string(call.ranks) + ",\"peer\":" + std::to_string(call.peer) + ",\"dtype\":" + quoted(call.dtype) +
        ",\"elements\":" + std::to_string(call.elements) + ",\"bytes\":" + std::to_string(call.bytes) +
        ",\"stream\":" + std::to_string(number_of(call.stream)) + "}");
}

void mark(const std::string& text) { write("{\"event\":\"mark\",\"text\":" + quoted(text) + "}"); }

Operator::Operator(const std::string& name, const std::string& dtype, const char* placement, int device)
    : name_(name), dtype_(dtype), placement_(placement), device_(device) {
  open_operator = this;
}

Operator::~Operator() {
  open_operator = nullptr;
  const int64_t allocated = phi::memory_utils::DeviceMemoryStatCurrentValue("Allocated", device_);
  write("{\"event\":\"operator\",\"name\":" + quoted(name_) + ",\"dtype\":" + quoted(dtype_) + ",\"placement\":\"" +
        placement_ + "\",\"inputs\":[" + inputs_ + "],\"outputs\":[" + outputs_ + "],\"allocated\":" +
        std::to_string(allocated) + "}");
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

// For virtual_npu.journal_mark().
extern "C" void virtual_npu_journal_mark(const char* text) {
  if (virtual_npu::journal::is_kept()) virtual_npu::journal::mark(text);
}

// For virtual_npu.flush_journal().
extern "C" void virtual_npu_journal_flush() { virtual_npu::journal::flush(); }
