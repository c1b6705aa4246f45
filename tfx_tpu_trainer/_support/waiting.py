"""Logs what a process waits for, after 30 seconds and then every minute.

A shorter wait logs nothing; it costs one sleeping thread.
"""

import concurrent.futures
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping

FIRST_NOTICE_SECONDS = 30.0
NOTICE_SECONDS = 60.0

_CONNECT_SECONDS = 1.0
_POLL_SECONDS = 1.0

# TensorFlow's logger, which shows warnings wherever there are estimators; obtained without importing TensorFlow.
_logger = logging.getLogger("tensorflow")


class HostsMissingError(RuntimeError):
    """Hosts of a cluster that did not answer in time."""


@contextlib.contextmanager
def said_while_waiting(
    what: str | Callable[[], str | None],
    *,
    change: str,
    first_secs: float = FIRST_NOTICE_SECONDS,
    every_secs: float = NOTICE_SECONDS,
) -> Iterator[None]:
    """Logs what a block waits for, while it does, and a sentence on how to change that."""
    ended = threading.Event()
    started = time.monotonic()

    def say() -> None:
        since, pause = started, first_secs
        while not ended.wait(pause):
            words = what if isinstance(what, str) else what()
            if words is None:
                since, pause = time.monotonic(), first_secs
            elif not ended.is_set():
                seconds, pause = time.monotonic() - since, every_secs
                _logger.warning("Waiting for %s, for %.0f s so far. %s", words, seconds, change)

    threading.Thread(target=say, daemon=True, name="notices").start()
    try:
        yield
    finally:
        ended.set()


def without_answer(hosts: Mapping[str, str]) -> dict[str, str]:
    """Returns the hosts that accept no connection."""
    if not hosts:
        return {}
    with concurrent.futures.ThreadPoolExecutor(min(16, len(hosts)), "connect") as threads:
        answers = list(threads.map(_answers, hosts.values()))
    return {name: hosts[name] for name, answer in zip(hosts, answers) if not answer}


def wait_for_tasks(
    hosts: Mapping[str, str],
    *,
    seconds: float | None,
    setting: str,
    poll_secs: float = _POLL_SECONDS,
    first_secs: float = FIRST_NOTICE_SECONDS,
    every_secs: float = NOTICE_SECONDS,
) -> None:
    """Waits until all hosts accept connections, and names those that do not.

    TensorFlow's own wait can't be ended, not even by Ctrl-C, so callers wait here first.
    """
    missing = without_answer(hosts)
    if not missing:
        return
    ends = None if seconds is None else time.monotonic() + seconds
    bound = "This has no time limit" if seconds is None else f"The time limit is {seconds:g} s"
    with said_while_waiting(
        lambda: f"hosts of the cluster that do not answer: {named(missing)}",
        change=f"{bound} ({setting}).",
        first_secs=first_secs,
        every_secs=every_secs,
    ):
        while missing:
            if ends is not None and time.monotonic() >= ends:
                raise HostsMissingError(
                    f"{named(missing)} did not answer within {seconds:g} s: start what is missing, "
                    f"correct its address in TF_CONFIG, or wait longer with {setting}"
                )
            time.sleep(poll_secs)
            missing = without_answer(missing)


def named(hosts: Mapping[str, str]) -> str:
    """Formats hosts as a list of names."""
    return ", ".join(f"{name} ({address})" for name, address in hosts.items())


def connection_error(address: str, *, seconds: float = _CONNECT_SECONDS) -> Exception | None:
    """Returns the error of connecting to a host, if any."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("it is not of the form HOST:PORT")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), seconds):
            return None
    except (OSError, OverflowError, UnicodeError) as error:
        return error


def _answers(address: str) -> bool:
    try:
        return connection_error(address) is None
    except ValueError:
        return True
