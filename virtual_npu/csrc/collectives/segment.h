// The memory shared by the processes of a group.
//
// It is an unnamed file (memfd), which the kernel frees when the last process closes it, so nothing remains even
// after a crash. Pages are allocated when they are written, so unused space is free.
//
//   Header | chunks: two per rank | payload of transfers: a region per pair of ranks
//
// Header and chunks are mapped. Transfers of any size are written to and read from the file.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "collectives/call.h"
#include "collectives/futex.h"
#include "collectives/process.h"
#include "runtime/file_descriptor.h"

namespace virtual_npu {

constexpr int kMaxRanks = 16;
constexpr size_t kChunk = size_t{4} << 20;    // bytes per rank in one step of a collective
constexpr uint32_t kMessages = 64;            // maximum number of pending transfers from one rank to another
constexpr size_t kWaitingBytes = size_t{1} << 30;  // beyond this, a sender waits for the receiver
constexpr size_t kKeptBytes = size_t{32} << 20;  // of a pair's region, for later transfers
constexpr size_t kRegion = size_t{1} << 36;

// The state of one rank for the other ranks.
struct alignas(64) RankSlot {
  enum State : uint32_t { kEmpty, kTaken, kLeft };
  Word state;
  Word arrived;   // the last barrier it has reached
  Word doorbell;  // rung when a transfer of this rank may progress
  int32_t trainer;
  int32_t machine;  // the first trainer on the same machine
  int32_t status_file;  // that process's descriptor of its wait status (deadlock.h)
  ProcessId process;
  // Its last two collectives. A slower rank may still read the earlier one.
  std::atomic<uint64_t> calls_made;
  struct Made {
    Call call;
    int64_t came;  // when the rank became ready for it
    uint64_t sent[kMaxRanks], received[kMaxRanks];  // bytes to and from every rank, of an all_to_all
  } calls[2];

  Made& made(uint64_t number) { return calls[number % 2]; }
  const Call& last_call() { return made(calls_made.load()).call; }
};

struct Message {
  Call call;
  uint64_t offset, bytes;  // in the pair's region
  int64_t sent_at;
};

// Transfers from one rank to another.
struct alignas(64) Channel {
  Word sent, received;  // messages
  std::atomic<uint64_t> bytes_received;
  Message messages[kMessages];
};

struct Header {
  Word ranks;
  Word taken;  // slots
  // The number of barriers that all ranks have passed. With kBroken added, the group is unusable for the reason in
  // `failure`.
  static constexpr uint32_t kBroken = 1u << 31;
  Word here, generation;
  enum Failure : uint32_t { kNone, kBeingWritten, kWritten };
  Word failure_state;
  uint32_t spreads;  // whether the other groups of its ranks are broken as well
  char failure[8192];
  RankSlot slots[kMaxRanks];
  Channel channels[kMaxRanks][kMaxRanks];
};

class Segment {
 public:
  // Creates an empty segment and returns its name for the other processes. It stays open until this process joins it.
  static std::string create();
  // Throws std::runtime_error if the segment's creator has exited or closed it, or if the kernel rejects it.
  Segment(const std::string& name, int ranks);
  ~Segment();
  Segment(const Segment&) = delete;

  // Stops keeping the segment open for others to join.
  static void all_have_joined(const std::string& name);
  static ProcessId maker(const std::string& name);

  Header& header() { return *static_cast<Header*>(address_); }
  char* chunk(int rank, int buffer) { return chunks_ + (size_t(rank) * 2 + buffer) * kChunk; }

  void write(int from, int to, uint64_t offset, const void* data, size_t bytes);
  void read(int from, int to, uint64_t offset, void* data, size_t bytes);
  // Returns the pages of a payload to the system, except the kept ones.
  void forget(int from, int to, uint64_t offset, size_t bytes);

 private:
  off_t position(int from, int to, uint64_t offset) const;

  const int ranks_;
  FileDescriptor file_;
  void* address_ = nullptr;
  char* chunks_ = nullptr;
  size_t mapped_ = 0;
};

}  // namespace virtual_npu
