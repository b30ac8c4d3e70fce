"""The processes that beat for the ranks of a run on several machines, and end them when a machine is lost.

One runs beside each rank, because a thread of the rank could not beat while native code holds Python's lock.
The process of rank 0 listens on rank 0's own endpoint, which Paddle itself never opens, and is the ``Hub``;
every rank's process, also rank 0's, is a ``Member``, connected to it. Each sends an empty line every
``TICK``. The hub judges who is lost and tells all members; a member that hears nothing from the hub judges
for itself. Both count their own ticks instead of seconds: a run that was stopped as a whole, and continued,
has lost nobody.

    member -> hub    question, gone (the rank has ended: why), bye (its work is done),
                     end (it gives the hub up: a first machine that was stopped reads it when it goes on)
    hub -> member    alive (the answer), end (sentence, exit code),
                     over (the answer to bye, and when the hub leaves)

Anybody may reach the hub's port. Who takes part has proved who it is (``handshake``), and what it says is
cut and made printable before it is shown. The hub limits the time and the number of other connections.

    layout.py     which ranks are on which machine, and how these are named
    messages.py   the lines that hub and members send each other
    handshake.py  what comes before them
    door.py       the hub's connections before their handshake has ended
    hub.py        who is lost
    member.py     one rank's connection to the hub
    process.py    the process: the rank's words, its end

``llm_npu.launch.heartbeat`` is the rank's side. The process imports this package by its last name, and the
standard library, only: it is there within a tenth of a second.
"""

import os

TICK = 0.5  # seconds between two beats
SILENT = 10  # ticks without a beat after which a rank counts as lost
START = 60  # ticks within which every rank has to be there
SETTLE = 2  # ticks between the end of one rank and the verdict: is its machine ending?
BEFORE_GONE = 0.3  # seconds; a machine that is being killed takes this process with the rank
LOST, FAILED = os.EX_TEMPFAIL, 1  # exit codes of the ranks that end
GRACE = 3.0  # seconds in which ranks may end by themselves, with their own message, when another has failed
FORCE = 2.0  # seconds after which a rank that should have ended is killed
LINGER = 120  # ticks that the hub stays for the others when rank 0 is done
LONGEST = 1 << 15  # bytes of a line
WORDS = 2000  # characters of a sentence from another machine
HANDSHAKE = 5.0  # seconds
WAITING = 64  # connections whose handshake has not ended
REFUSED = 2  # exit code of a rank with another secret than the hub's
