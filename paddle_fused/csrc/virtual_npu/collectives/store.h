// The store of Paddle, through which processes find each other: a thread of rank 0's process serves it.
#pragma once

namespace virtual_npu {

// Paddle 3.3 leaves that thread running while the process ends. When another rank then closes its connection, the
// thread writes a line of the log (which nobody reads) for the first time, and needs for that a lock of the log that is
// gone: the process aborts, now and then, after its work is done. A line that has been reached before needs no lock.
// This reaches the lines: it connects to the store and closes the connection, in both ways. It does so once, in the
// process that has the store, and does nothing elsewhere.
void close_a_connection_to_the_store();

}  // namespace virtual_npu
