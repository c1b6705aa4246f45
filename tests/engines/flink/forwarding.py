"""A worker pool on a separate address; Beam's listens on all addresses, so two can't have one port."""

import contextlib
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def forwarded(address: tuple[str, int], target: tuple[str, int]) -> Iterator[None]:
    """Hands all connections to an address on to another one, until the block ends.

    Args:
        address: Host and port to listen on.
        target: Host and port that gets the connections.
    """
    listening = socket.create_server(address)
    accepting = threading.Thread(target=_accept, args=(listening, target), daemon=True)
    accepting.start()
    try:
        yield
    finally:
        # Wakes the thread; closing alone would not.
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        accepting.join()


def _accept(listening: socket.socket, target: tuple[str, int]) -> None:
    while True:
        try:
            here, _ = listening.accept()
        except OSError:
            return
        try:
            there = socket.create_connection(target)
        except OSError:
            here.close()
            continue
        for reading, writing in ((here, there), (there, here)):
            threading.Thread(target=_copy, args=(reading, writing), daemon=True).start()


def _copy(reading: socket.socket, writing: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := reading.recv(65_536):
            writing.sendall(data)
    for end in (reading, writing):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
