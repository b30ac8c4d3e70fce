// The collectives that one call of a fused operator has in flight, on a communication stream: the calling thread
// computes meanwhile.
//
// On a card all MC2 operators of a process must use one communication domain. The first call chooses it here, for as
// long as the domain exists.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paddle/phi/common/data_type.h"

namespace virtual_npu {

class MatmulCommunication {
 public:
  // Finds the communication domain; refuses an unknown one and a second one.
  MatmulCommunication(const char* op, const std::string& hcom, phi::DataType dtype);
  // Waits for what is in flight: it reads and writes memory of the call.
  ~MatmulCommunication();
  MatmulCommunication(const MatmulCommunication&) = delete;

  // Refuses a world_size other than the number of ranks.
  void check_ranks(const char* op, int64_t world_size) const;

  int64_t ranks() const;
  int64_t rank() const;

  // Each hands a collective over and returns at once. Counts are elements of what one rank contributes (all_reduce,
  // gather_others) or receives (reduce_scatter).
  void all_reduce(void* data, int64_t count);
  // The parts of the other ranks, in the order of the ranks `distance` elements apart; this rank's own is left out.
  void gather_others(const void* in, void* out, int64_t count, int64_t distance);
  void reduce_scatter(const void* in, void* out, int64_t count);

  // Until the first `collectives` that were handed over have finished; throws if one of them failed.
  void wait(int64_t collectives);
  void wait_for_all();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace virtual_npu
