#include "collectives/collective.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "collectives/link.h"
#include "collectives/reduction.h"

namespace virtual_npu {
namespace {

constexpr size_t kAtOnce = size_t{32} << 10;  // up to this size, every rank reduces all data, which saves a barrier
constexpr size_t kLine = 64;                  // parts start on cache lines, so ranks do not share a line

void copy(char* to, const char* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

// The elements of a chunk that one rank reduces.
struct Part {
  size_t begin, end;
  size_t count() const { return end - begin; }
};
Part part_of(int rank, int ranks, size_t count, size_t size) {
  const size_t line = std::max<size_t>(kLine / size, 1);
  const size_t each = (count + ranks - 1) / ranks, whole_lines = (each + line - 1) / line * line;
  return {std::min(count, rank * whole_lines), std::min(count, (rank + 1) * whole_lines)};
}

// Bytes sent to one rank at a time if each rank receives a different part.
size_t bytes_of_a_part(int ranks) { return kChunk / ranks / kLine * kLine; }

}  // namespace

Collective::Collective(Members& members, int& buffer, const Call& call)
    : members_(members),
      buffer_(buffer),
      call_(call),
      rank_(members.rank()),
      ranks_(members.ranks()),
      size_(size_of(call.dtype)) {
  RankSlot& slot = members.own_slot();
  const Stream* stream = stream_of_this_thread();
  slot.made(call.number).call = call;
  slot.made(call.number).came = stream ? stream->turn() : now();
  slot.calls_made.store(call.number);
}

void Collective::barrier() {
  members_.barrier();
  if (compared_) return;
  compared_ = true;
  for (int rank = 0; rank < ranks_; ++rank) began_ = std::max(began_, members_.slot(rank).made(call_.number).came);
  compare();
}

void Collective::compare() {
  bool all_same = true;
  for (int rank = 0; rank < ranks_; ++rank) all_same &= same(members_.slot(rank).made(call_.number).call, call_);
  if (all_same) return call_.kind == CallKind::kAllToAll ? compare_parts() : void();
  std::string text = "The ranks of the " + members_.describe_group() + " made different calls: ";
  for (int rank = 0; rank < ranks_; ++rank)
    text += (rank ? "; " : "") + members_.describe(rank) + " called " +
            describe(members_.slot(rank).made(call_.number).call);
  members_.fail(text + ". All ranks of a group must make the same calls in the same order.", false);
}

// Each rank's sent sizes must equal the sizes that the receivers expect.
void Collective::compare_parts() {
  for (int from = 0; from < ranks_; ++from)
    for (int to = 0; to < ranks_; ++to) {
      const RankSlot::Made& sender = members_.slot(from).made(call_.number);
      const RankSlot::Made& receiver = members_.slot(to).made(call_.number);
      if (sender.sent[to] == receiver.received[from]) continue;
      members_.fail("The ranks of the " + members_.describe_group() + " disagree on the parts of an all_to_all: " +
                        members_.describe(from) + " sends " + std::to_string(sender.sent[to]) + " bytes to " +
                        members_.describe(to) + " in " + describe(sender.call) + ", which expects " +
                        std::to_string(receiver.received[from]) + " in " + describe(receiver.call) + ".",
                    false);
    }
}

void Collective::wait_for_links(Traffic hccs, Traffic rdma, bool at_the_same_time) {
  int64_t over = began_;
  if (members_.ranks_here() > 1 || members_.machines() == 1) over = occupy_link(LinkKind::kHccs, over, hccs);
  if (members_.machines() > 1)
    over = std::max(over, occupy_link(LinkKind::kRdma, at_the_same_time ? began_ : over, rdma));
  if (Stream* stream = stream_of_this_thread()) stream->over_at(std::max(over, now()));
  sleep_until(over);
}

void Collective::reduce_chunks(size_t at, const char* own, size_t count, char* out, char* copy) {
  const void* inputs[kMaxRanks];
  for (int rank = 0; rank < ranks_; ++rank) inputs[rank] = rank == rank_ ? own : chunk(rank) + at;
  virtual_npu::reduce(call_.dtype, call_.reduce, inputs, ranks_, count, out, copy);
}

void Collective::reduce_at_once(const char* send, char* receive) {
  copy(chunk(rank_), send, call_.count * size_);
  barrier();
  reduce_chunks(0, chunk(rank_), call_.count, receive);
  next_buffer();
}

// Each rank reduces one part of every chunk, in rank order, and the others copy the result, so all ranks have the
// same bits.
void Collective::all_reduce(const char* send, char* receive) {
  if (call_.count * size_ <= kAtOnce) return reduce_at_once(send, receive);
  const size_t step = kChunk / size_;
  const Part whole{0, call_.count};
  for (size_t begin = whole.begin; begin < whole.end; begin += step) {
    const size_t count = std::min(step, call_.count - begin);
    const char* from = send + begin * size_;
    char* to = receive + begin * size_;
    const Part own = part_of(rank_, ranks_, count, size_);
    copy(chunk(rank_), from, own.begin * size_);
    copy(chunk(rank_) + own.end * size_, from + own.end * size_, (count - own.end) * size_);
    barrier();
    const size_t at = own.begin * size_;
    reduce_chunks(at, from + at, own.count(), chunk(rank_) + at, to + at);
    barrier();
    for (int rank = 0; rank < ranks_; ++rank) {
      if (rank == rank_) continue;
      const Part part = part_of(rank, ranks_, count, size_);
      copy(to + part.begin * size_, chunk(rank) + part.begin * size_, part.count() * size_);
    }
    next_buffer();
  }
}

void Collective::reduce(const char* send, char* receive) {
  const size_t step = kChunk / size_;
  size_t begin = 0;
  do {
    const size_t count = std::min(step, call_.count - begin);
    if (rank_ != call_.peer) copy(chunk(rank_), send + begin * size_, count * size_);
    barrier();
    if (rank_ == call_.peer) reduce_chunks(0, send + begin * size_, count, receive + begin * size_);
    next_buffer();
    begin += step;
  } while (begin < call_.count);
}

void Collective::broadcast(char* data) {
  const size_t bytes = call_.count * size_;
  size_t begin = 0;
  do {
    const size_t count = std::min(kChunk, bytes - begin);
    if (rank_ == call_.peer) copy(chunk(rank_), data + begin, count);
    barrier();
    if (rank_ != call_.peer) copy(data + begin, chunk(call_.peer), count);
    next_buffer();
    begin += kChunk;
  } while (begin < bytes);
}

void Collective::all_gather(const char* send, char* receive, size_t distance, bool with_own) {
  const size_t bytes = call_.count * size_;
  size_t begin = 0;
  do {
    const size_t count = std::min(kChunk, bytes - begin);
    copy(chunk(rank_), send + begin, count);
    barrier();
    for (int rank = 0; rank < ranks_; ++rank)
      if (rank != rank_ || with_own)
        copy(receive + rank * distance + begin, rank == rank_ ? send + begin : chunk(rank), count);
    next_buffer();
    begin += kChunk;
  } while (begin < bytes);
}

void Collective::reduce_scatter(const char* send, char* receive) {
  const size_t step = bytes_of_a_part(ranks_) / size_;
  size_t begin = 0;
  do {
    const size_t count = std::min(step, call_.count - begin), bytes = count * size_;
    const auto sent_to = [&](int rank) { return send + (rank * call_.count + begin) * size_; };
    for (int rank = 0; rank < ranks_; ++rank)
      if (rank != rank_) copy(chunk(rank_) + rank * bytes, sent_to(rank), bytes);
    barrier();
    reduce_chunks(rank_ * bytes, sent_to(rank_), count, receive + begin * size_);
    next_buffer();
    begin += step;
  } while (begin < call_.count);
}

void Collective::all_to_all(const char* const* send, char* const* receive) {
  const size_t step = bytes_of_a_part(ranks_);
  const auto sizes = [&](int rank) -> const RankSlot::Made& { return members_.slot(rank).made(call_.number); };
  const auto length = [&](uint64_t bytes, size_t begin) { return bytes > begin ? std::min(step, bytes - begin) : 0; };
  size_t begin = 0;
  bool more = false;
  do {
    for (int to = 0; to < ranks_; ++to)
      if (to != rank_) copy(chunk(rank_) + to * step, send[to] + begin, length(sizes(rank_).sent[to], begin));
    barrier();
    more = false;
    for (int from = 0; from < ranks_; ++from) {
      const char* part = from == rank_ ? send[rank_] + begin : chunk(from) + rank_ * step;
      copy(receive[from] + begin, part, length(sizes(rank_).received[from], begin));
      for (int to = 0; to < ranks_; ++to) more |= sizes(from).sent[to] > begin + step;
    }
    next_buffer();
    begin += step;
  } while (more);
}

}  // namespace virtual_npu
