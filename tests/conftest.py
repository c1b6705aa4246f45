"""Who runs which test and when, and the fixtures that all of them may use."""

import gc
import importlib.util
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from tests import bad_input, excused
from tests.bad_input import refused as refused

# The estimators' tests run where TFX is not installed, too (tests/setup/test_light_install.py).
if importlib.util.find_spec("tfx"):
    from tests.pipeline_runs import cores_run as cores_run
    from tests.pipeline_runs import digits_run as digits_run
    from tests.pipeline_runs import taxi_run as taxi_run

REPOSITORY = Path(__file__).parents[1]


# Session fixtures that take long: all tests that use one go to the same worker.
SHARED = ("taxi_run", "digits_run", "transform_graph")
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
THREADS = pytest.StashKey[int]()
BAD_INPUT_ROWS = pytest.StashKey[dict[tuple[bad_input.Row, str], None]]()


class _DeprecatedCalls(logging.Handler):
    """Fails a test in which a module of ours calls what TensorFlow has deprecated: users read it in their logs."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        assert not text.startswith(f"From {REPOSITORY}/tfx_tpu_trainer/"), text


def pytest_configure() -> None:
    # TensorFlow logs it, once for each place, and warns of nothing.
    logging.getLogger("tensorflow").addHandler(_DeprecatedCalls())


# Before pytest-xdist's own, which reads the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Groups and orders the tests.

    A worker of pytest-xdist has its own fixtures. Tests of one file therefore stay in one worker, where they share
    the file's fixtures; and tests of a pipeline's run stay in one, whatever their files, so it runs once.

    Where there are workers, the long ones come first: what is left for the end is short, and no worker waits long for
    the other. In a single process the quick ones come first, so a slip shows before the pipelines run.
    """
    config.stash[BAD_INPUT_ROWS] = bad_input.rows_of(items)
    cannot_run = excused.rows_here()
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
        if reason := excused.reason(item.nodeid, cannot_run):
            item.add_marker(pytest.mark.skip(reason))
    items.sort(key=_weight, reverse=WORKER is not None)


# A wrapper, so pytest-xdist's controller, which collects nothing, switches it on again, too.
@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports all test modules without a look for garbage.

    Importing TensorFlow and TFX makes a million objects that stay: looking through them again and again takes a
    quarter of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


def pytest_collection_finish() -> None:
    # All test modules are imported and no test has run. Where none of them needs TensorFlow, its import is spared.
    if "tensorflow" in sys.modules:
        from tests.tensorflow_settings import make_logical_devices

        make_logical_devices()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    _seed()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Fails a test that leaves its thread in graph mode, or another thread at work, rather than those after it.

    The ones need the eager mode; and with a thread that never rests all of them take twice the time.
    """
    result = yield
    tf = sys.modules.get("tensorflow")
    of_others = nextitem is None or nextitem.path != item.path
    if tf is not None and of_others and not tf.executing_eagerly():
        pytest.fail(
            f"The tests of {item.path.name} leave their thread in graph mode.", pytrace=False
        )
    if of_others and _leaves_thread_at_work(item.config):
        pytest.fail(
            f"The tests of {item.path.name} leave a thread that never rests.", pytrace=False
        )
    return result


def _leaves_thread_at_work(config: pytest.Config) -> bool:
    """Returns whether there are more threads, and the process is busy for a second while this thread sleeps."""
    before = config.stash.get(THREADS, 1)
    config.stash[THREADS] = threading.active_count()
    return config.stash[THREADS] > before and all(_is_busy() for _ in range(10))


def _is_busy() -> bool:
    began = time.process_time()
    time.sleep(0.1)
    # A core is all its own on an idle machine, and a tenth of one on a busy one.
    return time.process_time() - began > 0.01


def _seed() -> None:
    """Lets fixtures and tests draw the same numbers in each run.

    Programs that users wrote set no seeds, and Keras draws its first weights from Python's own generator.
    """
    random.seed(11)
    np.random.seed(11)
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(11)


def _group(item: pytest.Item) -> str:
    shared = [name for name in SHARED if name in item.fixturenames]
    return shared[0] if shared else item.nodeid.partition("::")[0]


def _weight(item: pytest.Item) -> int:
    """Returns a rough duration of a test's group."""
    slow = any(item.get_closest_marker(name) for name in ("matrix", "e2e", "sweep"))
    return slow + 2 * (WORKER is not None and _group(item) in SHARED)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # pytest-xdist adds "@group" to a test's name, with which a reader could not call it again. Workers keep it.
    name, at, group = report.nodeid.rpartition("@")
    if at and "]" not in group and WORKER is None:
        report.nodeid = name
