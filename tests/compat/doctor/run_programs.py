"""Runs programs one after the other in this process: what each printed, then "ok" or its traceback."""

from __future__ import annotations

import pathlib
import runpy
import sys
import traceback

import tensorflow as tf

for program in sys.argv[1:]:
    print(f"=== {pathlib.Path(program).stem}")
    tf.compat.v1.reset_default_graph()
    try:
        runpy.run_path(program, run_name="__main__")
    except Exception:
        print(traceback.format_exc())
    else:
        print("ok")
