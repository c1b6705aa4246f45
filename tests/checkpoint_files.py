"""Checkpoints as files, looked at from outside while another process writes them."""

import glob
import re
from pathlib import Path


def last_whole_step(folder: Path) -> int:
    """Returns the step of the last checkpoint but one below a folder; 0 if there are fewer.

    The last one may have been written in part when its writer was killed.
    """
    # Not Path.rglob, which fails if the writer removes a folder meanwhile. The positions of the input, which are in a
    # folder next to it, are checkpoints of their own.
    paths = glob.glob("**/model.ckpt-*.index", root_dir=folder, recursive=True)
    steps = sorted(int(re.search(r"-(\d+)\.index$", path)[1]) for path in paths)
    return [0, 0, *steps][-2]
