// The pending collectives of one call of a fused operator on a communication stream, while the calling thread
// computes.
//
// On a card, all MC2 operators of a process must use one communication domain. Here, the first call selects it for
// the lifetime of the domain.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paddle/phi/common/data_type.h"

namespace virtual_npu {

class MatmulCommunication {
 public:
  // Finds the communication domain. Rejects an unknown domain and a second one.
  MatmulCommunication(const char* op, const std::string& hcom, phi::DataType dtype);
  // Waits for pending collectives, because they access memory of the call.
  ~MatmulCommunication();
  MatmulCommunication(const MatmulCommunication&) = delete;

  // Rejects a world_size that differs from the number of ranks.
  void check_ranks(const char* op, int64_t world_size) const;

  int64_t ranks() const;
  int64_t rank() const;

  // Each enqueues a collective and returns immediately. Counts are in elements that one rank contributes (all_reduce,
  // gather_others) or receives (reduce_scatter).
  void all_reduce(void* data, int64_t count);
  // The parts of the other ranks, in rank order and `distance` elements apart, without this rank's own part.
  void gather_others(const void* in, void* out, int64_t count, int64_t distance);
  void reduce_scatter(const void* in, void* out, int64_t count);

  // Waits until the first `collectives` enqueued have finished. Throws if one of them failed.
  void wait(int64_t collectives);
  void wait_for_all();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace virtual_npu
