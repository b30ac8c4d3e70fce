#include "custom_ops/mm_communication.h"

#include <mutex>

#include "collectives/communicator.h"
#include "custom_ops/checks.h"

namespace virtual_npu {
namespace {

namespace rules = contract::rules;

// The communication domain of these operators: the first one used, until it is destroyed.
void claim(const char* op, const std::string& hcom) {
  static std::mutex mutex;
  static std::string claimed;
  const std::lock_guard<std::mutex> lock(mutex);
  if (claimed != hcom && !claimed.empty() && Communicator::find(claimed))
    refuse(rules::mc2_domain, op, "hcom is " + hcom + " and " + claimed + " is in use");
  claimed = hcom;
}

C_DataType wire_type(phi::DataType dtype) { return dtype == phi::DataType::BFLOAT16 ? BFLOAT16 : FLOAT16; }

}  // namespace

struct MatmulCommunication::State {
  std::shared_ptr<Communicator> group;
  StreamPointer stream;
  C_DataType dtype;
  std::vector<Mark> marks;

  template <typename Issue>
  void add(Issue issue) {
    try {
      marks.push_back(issue());
    } catch (const StreamError& error) {
      raise(error);
    }
  }
};

MatmulCommunication::MatmulCommunication(const char* op, const std::string& hcom, phi::DataType dtype) {
  auto group = Communicator::find(hcom);
  if (!group) refuse(rules::mc2_hcom, op, "hcom is " + hcom);
  claim(op, hcom);
  state_.reset(new State{group, group->own_stream(), wire_type(dtype), {}});
}

MatmulCommunication::~MatmulCommunication() {
  for (const Mark& mark : state_->marks) {
    try {
      mark.wait();
    } catch (const StreamError&) {  // already thrown to the waiter, or another error is propagating
    }
  }
}

void MatmulCommunication::check_ranks(const char* op, int64_t world_size) const {
  if (ranks() == world_size) return;
  refuse(rules::mc2_world_size, op,
         "world_size is " + std::to_string(world_size) + " and the communication domain has " +
             std::to_string(ranks()) + " ranks");
}

int64_t MatmulCommunication::ranks() const { return state_->group->ranks(); }
int64_t MatmulCommunication::rank() const { return state_->group->rank(); }

void MatmulCommunication::all_reduce(void* data, int64_t count) {
  state_->add([&] { return state_->group->all_reduce(data, data, count, state_->dtype, SUM, state_->stream); });
}

void MatmulCommunication::gather_others(const void* in, void* out, int64_t count, int64_t distance) {
  state_->add(
      [&] { return state_->group->all_gather_others(in, out, count, distance, state_->dtype, state_->stream); });
}

void MatmulCommunication::reduce_scatter(const void* in, void* out, int64_t count) {
  state_->add([&] { return state_->group->reduce_scatter(in, out, count, state_->dtype, SUM, state_->stream); });
}

void MatmulCommunication::wait(int64_t collectives) {
  if (collectives == 0) return;
  try {
    state_->marks.at(collectives - 1).wait();  // they run sequentially
  } catch (const StreamError& error) {
    raise(error);
  }
}

void MatmulCommunication::wait_for_all() { wait(state_->marks.size()); }

}  // namespace virtual_npu
