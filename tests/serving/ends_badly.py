"""A module that ends as its second argument says; see test_fresh_process.py."""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[2] == "raises":
        raise ValueError("the reason\nand a second line\nand a third")
    if sys.argv[2] == "silent":
        sys.exit(3)
