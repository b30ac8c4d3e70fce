#include "runtime/deferral.h"

#include <cstdlib>
#include <mutex>
#include <random>
#include <vector>

#include "runtime/config.h"

namespace virtual_npu {
namespace deferral {
namespace {

struct Order {
  std::mutex mutex;
  std::vector<std::weak_ptr<Stream>> streams;
  std::mt19937 random{config().defer};
};
Order& order() {
  static auto* order = new Order;
  return *order;
}

// At the end of the process, peers need the collectives that nobody here waited for.
void finish() {
  std::vector<std::weak_ptr<Stream>> streams;
  {
    std::lock_guard<std::mutex> lock(order().mutex);
    streams = order().streams;
  }
  for (const auto& weak : streams)
    if (const auto stream = weak.lock()) stream->wait_for(stream->last(), config().collective_timeout);
}

}  // namespace

void add(const std::shared_ptr<Stream>& stream) {
  std::lock_guard<std::mutex> lock(order().mutex);
  if (order().streams.empty()) std::atexit(finish);
  order().streams.push_back(stream);
}

void run_ahead() {
  std::shared_ptr<Stream> chosen;
  {
    std::lock_guard<std::mutex> lock(order().mutex);
    auto& streams = order().streams;
    if (order().random() % 4 != 0 || streams.empty()) return;
    chosen = streams[order().random() % streams.size()].lock();
  }
  if (chosen) chosen->release(chosen->last());
}

}  // namespace deferral
}  // namespace virtual_npu
