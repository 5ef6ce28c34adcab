"""Real clients: the same protocols over a NATS broker, with nothing lost and nobody let in.

The ends are durable, the broker is not. The server's state is a function of its recipe and its log of events, each of
which is on disk before it has any effect; an agent keeps a result until the server says that it is safe.
"""
