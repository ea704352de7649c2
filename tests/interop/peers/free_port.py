"""A port for the ranks of a job, which rank 0 opens some seconds later."""
import random
import socket

BELOW_EPHEMERAL = (10000, 32000)  # the kernel gives the ports above to connections, so that another job could get one meanwhile


def free_port():
    """Returns a port of 127.0.0.1 on which nobody listens and which no connection is given."""
    draw = random.SystemRandom()
    while True:
        port = draw.randrange(*BELOW_EPHEMERAL)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
