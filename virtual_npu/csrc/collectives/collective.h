// How the ranks of a group execute a collective, on the calling thread.
//
// Data passes through the ranks' chunks in steps of at most kChunk bytes. At the first barrier each rank also compares
// the calls of all ranks. A rank alternates between its two chunks: before it writes to a chunk again, all ranks have
// passed a barrier since they read it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "collectives/members.h"

namespace virtual_npu {

class Collective {
 public:
  // `buffer`: whose turn it is, the same on every rank.
  Collective(Members& members, int& buffer, const Call& call);

  void all_reduce(const char* send, char* receive);
  void reduce(const char* send, char* receive);
  void broadcast(char* data);
  // The ranks' parts in `receive` are `distance` bytes apart; this rank's own is there already or not wanted, unless
  // `with_own`.
  void all_gather(const char* send, char* receive, size_t distance, bool with_own);
  void reduce_scatter(const char* send, char* receive);
  // send[r], receive[r]: what goes to and comes from rank r, as many bytes as the slot of this rank says.
  void all_to_all(const char* const* send, char* const* receive);

  // Until the emulated links have carried these bytes from and to this rank: `hccs` inside its machine, then `rdma` to
  // and from other machines, or both at the same time. They begin when the last rank could have begun: a card's DMA
  // engine does not wait for a processor.
  void wait_for_links(Traffic hccs, Traffic rdma, bool at_the_same_time = false);

 private:
  void barrier();
  void compare();
  void compare_parts();
  char* chunk(int rank) { return members_.segment().chunk(rank, buffer_); }
  void next_buffer() { buffer_ = 1 - buffer_; }
  void reduce_at_once(const char* send, char* receive);
  // Reduces `count` elements `at` bytes into every rank's chunk; this rank's are at `own` instead. `copy`: where else the
  // result goes, or nullptr.
  void reduce_chunks(size_t at, const char* own, size_t count, char* out, char* copy = nullptr);

  Members& members_;
  int& buffer_;
  const Call call_;
  const int rank_, ranks_;
  const size_t size_;  // of an element
  int64_t began_ = 0;  // when the turn of the last rank had come
  bool compared_ = false;
};

}  // namespace virtual_npu
