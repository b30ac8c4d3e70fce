// Who waits for whom, across all groups of all processes.
//
// A process that waits for others with all threads from which it communicates says so in a page of its own, which
// others read through /proc. Each edge of the wait-for graph is then real: nothing but the process it points to can end
// the wait. So if a process finds a cycle by following edges, the processes in it are deadlocked.
#pragma once
#include <string>
#include <vector>

#include "collectives/process.h"

namespace virtual_npu {

// The descriptor of this process's page.
int status_file();

struct Awaited {
  ProcessId process;
  int32_t status_file = -1;
};

// Says that this process waits, as `text` describes, since `since` for all of `awaited`, if its program does; whether.
bool publish_status(const std::string& text, int64_t since, const std::vector<Awaited>& awaited);
void withdraw_status();

// Follows the edges from `awaited`. The waits of those that lead into a cycle, as "; ..." each; "" if all paths end.
std::string find_cycle(const std::vector<Awaited>& awaited);

}  // namespace virtual_npu
