"""A broker decides which memory stands for a name, who has a lease of it, who waits, and whose process
may still write it. It is a state machine without a thread, lock, clock or descriptor:
:meth:`Broker.step` takes one event and returns the actions that follow. The server (share/server.py) is its loop. Go's internal/broker
has the same events and actions, and both run its tables.

The life of an offer:

    Claim       its name is expected: sessions that ask for it wait. Several offers may claim a
                name; the first that is prepared or published has it
    Describe    its record is known, and its memory
    Prepare     sessions are sent the descriptors, and wait for the data; many offers leave this out
    Publish     from this step on the name stands for this memory, and all who waited get it. An
                offer that had the name is replaced; its leases go on
    Withdraw    the name is free, and leases end: Over. The last place ends an offer as Withdraw does.
                Finished: the last lease has ended, and no writer is waited for any more

The life of a session: ASKING while the application is asked, QUEUED or BEHIND while it waits,
GRANTED with a lease, SERVED with the data, MAPPED, and OVER. A session that gets no lease is refused
(Refuse) and gone with that; with a lease, Gone follows End when its connection is over.

The actions of one session are performed in the order in which they were returned; those of different
sessions in any order.
"""

from .machine import Broker, Options

__all__ = ["Broker", "Options"]
