"""`outbox dev`: servers, schema, relay, checker and console in one terminal, for the developer of a service.

From the outside in: `commands.py` is the command line and `run.py` one session. `servers.py` has the servers for the
time of a session, `outset.py` brings schema and topics, `processes.py` runs relay and checker, `screen.py` prints what
all of them log, and `claim.py` is what a second `outbox dev` of the same directory finds.

What may end it, and what follows. Ctrl-C, SIGTERM and SIGHUP: checker and relay are asked to stop, then the servers
that this session started. SIGKILL: the kernel kills relay and checker (PR_SET_PDEATHSIG), the supervisor of the stack
finds its owner gone and stops the servers in order, and the lock of the claim is released with the process.
"""
