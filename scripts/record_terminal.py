"""Records what a program shows on a terminal: `python scripts/record_terminal.py [--every SECONDS] FILE [program ...]`.

Without a program it trains 5,000 steps, with evaluations on the way; docs/progress.md shows such a recording. The
recording has the terminal's changed lines at even intervals, each with the seconds since the start.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

WIDTH, HEIGHT = 100, 40
_SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)|(\x1b)")


class Screen:
    """As much of a terminal as rich's live displays need: lines, and a cursor that goes up again."""

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        """Takes what a program writes."""
        for parameters, command, control, written, _ in _SEQUENCE.findall(text):
            if written:
                self._write(written)
            elif control == "\r":
                self._column = 0
            elif control == "\n":
                self._row += 1
                self._column = 0
                self.lines += [""] * (self._row + 1 - len(self.lines))
            elif command == "A":
                self._row = max(0, self._row - int(parameters or 1))
            elif command == "K":
                self.lines[self._row] = ""

    def _write(self, text: str) -> None:
        line = self.lines[self._row].ljust(self._column)
        self.lines[self._row] = line[: self._column] + text + line[self._column + len(text) :]
        self._column += len(text)


def record(command: list[str], *, every_secs: float) -> list[str]:
    """Runs a program on a terminal of its own."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1"}
    started = time.monotonic()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    screen, shown, recording = Screen(), list[str](), list[str]()
    decoder = codecs.getincrementaldecoder("utf-8")()
    due, is_open = started + every_secs, True
    while is_open:
        if select.select([ours], [], [], max(0.0, due - time.monotonic()))[0]:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # The program has ended.
                part = b""
            is_open = bool(part)
            screen.feed(decoder.decode(part))
        if not is_open or time.monotonic() >= due:
            seconds, due = time.monotonic() - started, due + every_secs
            lines = [line.rstrip() for line in screen.lines]
            changed = [line for n, line in enumerate(lines) if line and shown[n : n + 1] != [line]]
            recording += [f"{seconds:6.1f} s | {line}" for line in changed]
            shown = lines
    os.close(ours)
    if process.wait():
        raise SystemExit(
            f"{command} ended with exit code {process.returncode}: {screen.lines[-3:]}"
        )
    return recording


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, help="where the recording goes")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two looks")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="program and its arguments")
    options = parser.parse_args()
    example = [sys.executable, str(Path(__file__).with_name("train_for_recording.py"))]
    recording = record(options.program or example, every_secs=options.every)
    options.file.write_text("\n".join(recording) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
