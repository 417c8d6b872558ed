"""Several processes behind one address, which are one backend to their clients.

The `parent` binds TCP and UDP, starts each `worker` and starts it again, and decides when to leave.
A worker serves, and reports the sum of all of them in every response.  `board` is the memory that
they share, `slots` its layout, and `total` the sum.
"""
