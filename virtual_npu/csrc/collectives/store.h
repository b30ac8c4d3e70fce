// The store of Paddle, through which processes find each other: a thread of rank 0's process serves it.
#pragma once

namespace virtual_npu {

// Paddle 3.3 leaves that thread running while the process ends. When another rank then closes its connection, the
// thread logs from that line of code for the first time, which takes a lock of the logging library that is destroyed by
// then: now and then the process aborts after its work is done. A line that has logged before takes no lock.
// This reaches the lines: it connects to the store and closes the connection, in both ways. It does so once, in the
// process that has the store, and does nothing elsewhere.
void close_a_connection_to_the_store();

}  // namespace virtual_npu
