"""Tests the log of waits, with real sockets as hosts."""

import contextlib
import socket
import threading
import time

import pytest

from tests.estimator._engine.log_lines import log_lines
from tfx_tpu_trainer._support.waiting import (
    HostsMissingError,
    connection_error,
    said_while_waiting,
    wait_for_tasks,
    without_answer,
)

SHORT = {"first_secs": 0.1, "every_secs": 0.2}


@contextlib.contextmanager
def _listening(port=0):
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def _absent():
    with _listening() as address:
        return address


def test_a_wait_is_named_after_a_while_and_then_again(caplog):
    with log_lines(caplog) as logged, said_while_waiting("a bus", change="Walk.", **SHORT):
        time.sleep(0.45)
    assert logged[0] == "Waiting for a bus, for 0 s so far. Walk."
    assert len(logged) >= 2
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_a_short_wait_says_nothing(caplog):
    with log_lines(caplog) as logged:
        with said_while_waiting("a bus", change="Walk.", **SHORT):
            pass
        time.sleep(0.2)
    assert not logged


def test_what_is_waited_for_may_change(caplog):
    waits = iter(["one thing", None, "another thing"])
    with (
        log_lines(caplog) as logged,
        said_while_waiting(lambda: next(waits, None), change="Wait.", **SHORT),
    ):
        time.sleep(1)
    assert [line.split(",")[0] for line in logged] == [
        "Waiting for one thing",
        "Waiting for another thing",
    ]


def test_the_thread_of_a_wait_ends_with_it():
    before = threading.active_count()
    with pytest.raises(ArithmeticError), said_while_waiting("it", change="."):
        raise ArithmeticError
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_hosts_without_an_answer_are_found():
    absent = _absent()
    with _listening() as there:
        hosts = {"ps 0": there, "ps 1": absent, "other": "unix:/tmp/x", "no host": "a.invalid:1"}
        assert without_answer(hosts) == {"ps 1": absent, "no host": "a.invalid:1"}
    assert without_answer({}) == {}


def test_hosts_are_waited_for_until_they_answer(caplog):
    absent = _absent()
    port = int(absent.rpartition(":")[2])
    came = threading.Event()

    def come():
        time.sleep(0.3)
        with _listening(port):
            came.wait(10)

    thread = threading.Thread(target=come)
    thread.start()
    with log_lines(caplog) as logged:
        wait_for_tasks({"ps 0": absent}, seconds=20, setting="patience", poll_secs=0.05, **SHORT)
    came.set()
    thread.join()
    assert logged[0] == (
        f"Waiting for hosts of the cluster that do not answer: ps 0 ({absent}), for 0 s so far. "
        "The time limit is 20 s (patience)."
    )


def test_hosts_that_never_answer_are_named():
    absent = _absent()
    with _listening() as there, pytest.raises(HostsMissingError) as raised:
        wait_for_tasks(
            {"ps 0": there, "ps 1": absent}, seconds=0.2, setting="patience", poll_secs=0.05
        )
    assert str(raised.value) == (
        f"ps 1 ({absent}) did not answer within 0.2 s: start what is missing, correct its address in "
        "TF_CONFIG, or wait longer with patience"
    )


def test_why_a_host_takes_no_connection_is_returned():
    with _listening() as address:
        assert connection_error(address) is None
    assert isinstance(connection_error(_absent()), ConnectionRefusedError)
    # A name that no host can have, which Python rejects before any lookup.
    assert isinstance(connection_error("jobs..example:8099"), UnicodeError)
    with pytest.raises(ValueError, match="HOST:PORT"):
        connection_error("jobs.example")
