#include "collectives/point_to_point.h"

#include <algorithm>

#include "collectives/link.h"

namespace virtual_npu {
namespace {

constexpr uint64_t kAlignment = 4096;

// Whether `later` may overtake the unfinished `earlier`.
bool may_overtake(const Transfer& earlier, const Transfer& later) {
  if (earlier.peer == later.peer && earlier.send == later.send) return false;
  if (earlier.send && later.send) return true;
  return earlier.data + earlier.bytes() <= later.data || later.data + later.bytes() <= earlier.data;
}

// The start of the next message of `bytes` in the region. If no message waits, this is the start of the region,
// because existing pages are cheaper than fresh ones. Otherwise it is a new page after the last message, without
// wrapping.
uint64_t next_offset(const Channel& channel, uint32_t sent, uint32_t waiting, size_t bytes) {
  if (waiting == 0) return 0;
  const Message& last = channel.messages[(sent - 1) % kMessages];
  const uint64_t after = (last.offset + last.bytes + kAlignment - 1) / kAlignment * kAlignment;
  return after + bytes > kRegion ? 0 : after;
}

// Whether the data is in shared memory. Writes it if there is room.
bool try_write(Members& members, Transfer& transfer) {
  if (transfer.written) return true;
  const int from = members.rank(), to = transfer.peer;
  Channel& channel = members.channel(from, to);
  const uint32_t sent = channel.sent.load(), waiting = sent - channel.received.load();
  if (waiting == kMessages) return false;
  uint64_t bytes_waiting = 0;
  for (uint32_t i = 1; i <= waiting; ++i) bytes_waiting += channel.messages[(sent - i) % kMessages].bytes;
  if (waiting > 0 && bytes_waiting + transfer.bytes() > kWaitingBytes) return false;
  const uint64_t offset = next_offset(channel, sent, waiting, transfer.bytes());
  members.segment().write(from, to, offset, transfer.data, transfer.bytes());
  const int64_t time = now();
  channel.messages[sent % kMessages] = {transfer.call, offset, transfer.bytes(), time};
  channel.sent.store(sent + 1);
  members.ring(to);
  transfer.over = occupy_link(members.link_to(to), time, {transfer.bytes(), 0});
  transfer.place = sent;
  transfer.written = true;
  return true;
}

bool try_send(Members& members, Transfer& transfer) {
  if (!try_write(members, transfer)) return false;
  if (transfer.buffered) return true;
  const uint32_t received = members.channel(members.rank(), transfer.peer).received.load();
  return int32_t(received - transfer.place) > 0;  // the counters wrap around
}

// The transfer's batch has been in progress since `began`.
bool try_receive(Members& members, Transfer& transfer, int64_t began) {
  const int from = transfer.peer, to = members.rank();
  Channel& channel = members.channel(from, to);
  const uint32_t received = channel.received.load();
  if (channel.sent.load() == received) return false;
  const Message& message = channel.messages[received % kMessages];
  if (!fits(message.call, transfer.call))
    members.fail("The two ends of a transfer disagree, in the " + members.describe_group() + ": " +
                     members.describe(from) + " called " + describe(message.call) + "; " + members.describe(to) +
                     " called " + describe(transfer.call) + ".",
                 false);
  members.segment().read(from, to, message.offset, transfer.data, transfer.bytes());
  members.segment().forget(from, to, message.offset, transfer.bytes());
  const int64_t start = std::max({message.sent_at, transfer.called, began});
  channel.received.store(received + 1);
  members.ring(from);
  transfer.over = occupy_link(members.link_to(from), start, {0, transfer.bytes()});
  return true;
}

}  // namespace

void TransferBatch::append(const Transfers& transfers) {
  std::lock_guard<std::mutex> lock(mutex_);
  transfers_.insert(transfers_.end(), transfers.begin(), transfers.end());
}

// Makes all possible progress on the batch.
bool TransferBatch::progress(Members& members) {
  Transfers waiting;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto is_done = [](const std::shared_ptr<Transfer>& one) { return one->done; };
    transfers_.erase(std::remove_if(transfers_.begin(), transfers_.end(), is_done), transfers_.end());
    waiting = transfers_;
  }
  bool any = false;
  for (size_t i = 0; i < waiting.size(); ++i) {
    Transfer& transfer = *waiting[i];
    bool free = true;
    for (size_t j = 0; j < i && free; ++j) free = waiting[j]->done || may_overtake(*waiting[j], transfer);
    if (!free) continue;
    transfer.done = transfer.send ? try_send(members, transfer) : try_receive(members, transfer, began_);
    any |= transfer.done;
  }
  return any;
}

std::vector<int> TransferBatch::waiting_for(const Transfers& own) const {
  std::vector<int> ranks;
  for (const auto& transfer : own)
    if (!transfer->done) ranks.push_back(transfer->peer);
  return ranks;
}

void TransferBatch::wait(Members& members, const Transfers& own) {
  if (!began_) began_ = now();
  const auto is_done = [](const std::shared_ptr<Transfer>& one) { return one->done; };
  for (;;) {
    const uint32_t bell = members.own_slot().doorbell.load();
    members.check();
    const bool went_on = progress(members);
    const auto waiting = std::find_if_not(own.begin(), own.end(), is_done);
    if (waiting == own.end()) break;
    if (!went_on) members.wait_for_bell(bell, (*waiting)->call, waiting_for(own));
  }
  int64_t over = 0;
  for (const auto& transfer : own) over = std::max(over, transfer->over);
  sleep_until(over);
}

}  // namespace virtual_npu
