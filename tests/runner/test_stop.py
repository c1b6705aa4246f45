"""A run that is asked to stop does, whatever code catches its exception."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import signal, time
from tfx_tpu_trainer.runner import stop

stop.REMIND_SECONDS = 0.2
run = stop.Stop()
run.listen()
try:
    try:
        signal.raise_signal(signal.SIGTERM)
    except Exception as error:
        print("swallowed", error, flush=True)
    while True:
        time.sleep(0.01)
except stop.RunStoppedError as error:
    run.ended()
    # No reminder comes any more, and no other signal.
    signal.raise_signal(signal.SIGINT)
    time.sleep(0.5)
    print("ended", error, run.reason, sep="|")
"""


def test_a_swallowed_stop_comes_again_with_its_first_reason() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    reason = f"stopped by {signal.SIGTERM.name}"
    assert ended.stdout.splitlines() == [f"swallowed {reason}", f"ended|{reason}|{reason}"]
