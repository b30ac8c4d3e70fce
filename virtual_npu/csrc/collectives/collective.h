// Executes a collective on the calling thread.
//
// Data is passed through the ranks' chunks in steps of at most kChunk bytes. At the first barrier, each rank also
// compares the calls of all ranks. A rank alternates between its two chunks: all ranks pass a barrier after reading a
// chunk and before it is written again.
#pragma once
#include <cstddef>
#include <cstdint>

#include "collectives/members.h"

namespace virtual_npu {

class Collective {
 public:
  // `buffer`: the chunk to use next, the same on every rank.
  Collective(Members& members, int& buffer, const Call& call);

  void all_reduce(const char* send, char* receive);
  void reduce(const char* send, char* receive);
  void broadcast(char* data);
  // The ranks' parts in `receive` are `distance` bytes apart. This rank's own part is written only with `with_own`.
  void all_gather(const char* send, char* receive, size_t distance, bool with_own);
  void reduce_scatter(const char* send, char* receive);
  // send[r], receive[r]: data to and from rank r. The sizes are in this rank's slot.
  void all_to_all(const char* const* send, char* const* receive);

  // Waits until the emulated links have transferred these bytes from and to this rank: first `hccs` inside its
  // machine, then `rdma` between machines, or both concurrently. Transfers start when the last rank could have
  // started, because a card's DMA engine does not wait for a processor.
  void wait_for_links(Traffic hccs, Traffic rdma, bool at_the_same_time = false);

 private:
  void barrier();
  void compare();
  void compare_parts();
  char* chunk(int rank) { return members_.segment().chunk(rank, buffer_); }
  void next_buffer() { buffer_ = 1 - buffer_; }
  void reduce_at_once(const char* send, char* receive);
  // Reduces `count` elements at byte offset `at` in every rank's chunk; this rank's data is at `own` instead. `copy`:
  // a second destination of the result, or nullptr.
  void reduce_chunks(size_t at, const char* own, size_t count, char* out, char* copy = nullptr);

  Members& members_;
  int& buffer_;
  const Call call_;
  const int rank_, ranks_;
  const size_t size_;  // of an element
  int64_t began_ = 0;  // when the last rank became ready
  bool compared_ = false;
};

}  // namespace virtual_npu
