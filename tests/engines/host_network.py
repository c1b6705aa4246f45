"""Hosts with their own addresses on this machine: network namespaces, joined by a bridge."""

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator, Sequence

import pytest

from tests.engines import tools

# Of the block that RFC 2544 keeps for measurements, so no real network has them.
_SUBNET = "198.18.77"
_numbers = itertools.count()


def skip_without_namespaces() -> None:
    """Skips the running test if no network namespace can be made."""
    tools.skip_without("ip")
    name = f"try{os.getpid()}"
    made = subprocess.run(
        ["ip", "netns", "add", name], capture_output=True, text=True, timeout=60, check=False
    )
    if made.returncode:
        pytest.skip(f"network namespaces need root (CAP_SYS_ADMIN): {made.stderr.strip()}")
    _ip("netns", "delete", name)


class HostNetwork:
    """Hosts that reach each other through links which can be taken down.

    Attributes:
        addresses: The address of each host.
    """

    def __init__(self, count: int) -> None:
        """Names the hosts; `open_network` makes them."""
        self._name = f"t{os.getpid()}n{next(_numbers)}"
        self.addresses = [f"{_SUBNET}.{number + 1}" for number in range(count)]

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """Returns a command that runs another one on a host, as the same process."""
        return ["ip", "netns", "exec", self._of(host), *command]

    def set_link(self, host: int, *, up: bool) -> None:
        """Puts the link between a host and all others up or down, without notice to the host."""
        _ip("link", "set", self._link(host), "up" if up else "down")

    def make(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")
        for host, address in enumerate(self.addresses):
            inside = ("-n", self._of(host))
            _ip("netns", "add", self._of(host))
            _ip(
                *("link", "add", self._link(host), "type", "veth"),
                *("peer", "name", "eth0", "netns", self._of(host)),
            )
            _ip("link", "set", self._link(host), "master", self._bridge, "up")
            _ip(*inside, "link", "set", "lo", "up")
            _ip(*inside, "address", "add", f"{address}/24", "dev", "eth0")
            _ip(*inside, "link", "set", "eth0", "up")

    def remove(self) -> None:
        for host in range(len(self.addresses)):
            for command in (
                ("link", "delete", self._link(host)),
                ("netns", "delete", self._of(host)),
            ):
                with contextlib.suppress(subprocess.CalledProcessError):
                    _ip(*command)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "delete", self._bridge)

    @property
    def _bridge(self) -> str:
        return f"{self._name}b"

    def _link(self, host: int) -> str:
        return f"{self._name}v{host}"

    def _of(self, host: int) -> str:
        return f"{self._name}h{host}"


@contextlib.contextmanager
def open_network(count: int) -> Iterator[HostNetwork]:
    """Makes hosts, and removes them at the end of the block."""
    network = HostNetwork(count)
    try:
        network.make()
        yield network
    finally:
        network.remove()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=60)
