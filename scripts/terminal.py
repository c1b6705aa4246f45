"""Records and draws programs' terminal output for the documentation.

    python -m scripts.terminal record [--every SECONDS] FILE [PROGRAM ...]
    COMMAND | python -m scripts.terminal draw FILE.svg --title TITLE

A recording has the terminal's changed lines at even intervals, each with the seconds since the start: docs/progress.md
shows one. A picture loads no font, but names common ones: docs/images/demo.svg is one, of `tfx-tpu-trainer show`.
"""

import codecs
import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
import warnings
from pathlib import Path

import click
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

WIDTH, HEIGHT = 100, 40
_SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)|(\x1b)")
# Rich's own pictures load a font from another host.
_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_FONTS = '"DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", monospace'


class Screen:
    """Emulates the parts of a terminal that rich's live displays need: lines, and a cursor that moves up."""

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        """Processes a program's output."""
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
    """Runs a program on its own terminal."""
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


def picture(text: str, *, title: str, width: int = 100) -> str:
    """Draws a terminal with a text as SVG."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text.rstrip()))
    drawn = console.export_svg(title=title, theme=MONOKAI, unique_id="terminal")
    drawn = _FONT_FACE.sub("", drawn).replace("Fira Code, monospace", _FONTS)
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


@click.group()
def main() -> None:
    """Records and draws programs' terminal output."""


@main.command(name="record", context_settings={"ignore_unknown_options": True})
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@click.option("--every", default=1.0, show_default=True, help="Seconds between two looks.")
def record_command(file: Path, program: tuple[str, ...], every: float) -> None:
    """Records PROGRAM with its arguments into FILE; without one, a training of 5,000 steps."""
    command = list(program) or [sys.executable, "-m", "scripts.terminal", "train"]
    file.write_text("\n".join(record(command, every_secs=every)) + "\n", encoding="utf-8")


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--title", default="", help="Title of the terminal.")
def draw(file: Path, title: str) -> None:
    """Draws the standard input as a terminal into FILE."""
    file.write_text(picture(sys.stdin.read(), title=title), encoding="utf-8")


@main.command(hidden=True)
def train() -> None:
    """Trains 5,000 steps with evaluations on the way."""
    # Imported here: other commands need no TensorFlow, and the recording no warnings.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    warnings.filterwarnings("ignore")
    import numpy as np
    import tensorflow as tf

    from tfx_tpu_trainer import estimator
    from tfx_tpu_trainer.estimator import tpu

    v1 = tf.compat.v1
    rows, batch = 20_011, 256

    def model_fn(features, labels, mode, params):
        hidden = v1.layers.dense(features["x"], 128, activation=tf.nn.relu)
        logits = v1.layers.dense(hidden, 1)[:, 0]
        loss = v1.losses.sigmoid_cross_entropy(labels, logits)
        if mode == "eval":
            return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn, [labels, logits]))
        step = v1.train.get_global_step()
        train_op = v1.train.AdamOptimizer(0.001).minimize(loss, step)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def metric_fn(labels, logits):
        return {"auc": v1.metrics.auc(labels, tf.sigmoid(logits))}

    def dataset():
        x = np.random.default_rng(0).normal(size=(rows, 64)).astype(np.float32)
        labels = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices(({"x": x}, labels))

    def train_input_fn(params):
        return dataset().shuffle(rows, seed=1).repeat().batch(params["batch_size"])

    trainer = tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(model_dir=tempfile.mkdtemp(), save_checkpoints_steps=1000),
        use_tpu=False,
        train_batch_size=batch,
        eval_batch_size=batch,
    )
    estimator.train_and_evaluate(
        trainer,
        estimator.TrainSpec(train_input_fn, max_steps=5000),
        estimator.EvalSpec(
            lambda params: dataset().batch(params["batch_size"]), steps=None, throttle_secs=0
        ),
    )


if __name__ == "__main__":
    main()
