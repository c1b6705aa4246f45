"""Tests a training's display on a terminal, and its replacement in a file."""

import contextlib
import copy
import io
import os
import pickle
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator import linear_model
from tests.estimator._engine.log_lines import log_lines
from tfx_tpu_trainer import estimator
from tfx_tpu_trainer._support.progress_bar import bar_view
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def _terminal():
    """Makes a terminal; returns its end for a program, and a function that closes it and returns its input."""
    ours, theirs = pty.openpty()
    parts = []

    def read():
        # Nobody has the terminal any more: an error on Linux, the end elsewhere.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 1 << 16):
                parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    file = os.fdopen(theirs, "w")

    def sent():
        file.close()
        reader.join()
        return b"".join(parts).decode()

    try:
        yield file, sent
    finally:
        sent()
        os.close(ours)


def _train(folder, *, hooks=(), **options):
    made = tpu.TPUEstimator(
        linear_model.model_fn_for(tpu),
        config=tpu.RunConfig(model_dir=str(folder), **options),
        use_tpu=False,
        train_batch_size=6,
    )
    made.train(linear_model.endless_input_fn, hooks=hooks, max_steps=3)


def _plain(sent):
    """Returns the text without terminal commands."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent).replace("\r", "\n")


@pytest.fixture(scope="module")
def on_cores():
    """Returns what a program sent to its terminal, and its standard output, which is a pipe."""
    with _terminal() as (stderr, sent):
        process = subprocess.run(
            [sys.executable, "-m", "tests._support.terminal_program"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
            text=True,
        )
        shown = sent()
    assert process.returncode == 0, shown
    return shown, process.stdout


def test_a_terminal_has_a_bar_with_steps_loss_and_time_left_and_then_the_result(on_cores):
    sent, out = on_cores
    text = _plain(sent)
    assert "━" in text
    assert re.search(r"train +[━╸╺ ]+ step \d+ of 40 \(\d+ %\)", text)
    assert re.search(r"loss [\d.]+, [\d.]+ steps/s, [\d.,]+ examples/s, \d+ s left", text)
    assert re.search(r"^train: step 40 of 40 \(100 %\), loss .*checkpoint at step 40", text, re.M)
    assert re.search(r"^Ran on 2 emulated TPU cores: trace [\d.]+ s, train [\d.]+ s\.", text, re.M)
    assert re.search(
        r"^evaluate: \d+ batches, \d+ rows, loss [\d.]+, loss_by_rows [\d.]+", text, re.M
    )
    assert out == "printed by the program\n"


def test_log_lines_stand_above_the_bar_each_by_itself(on_cores):
    text = _plain(on_cores[0])
    lines = [line for line in text.split("\n") if "INFO:tensorflow:" in line]
    assert any(line.startswith("INFO:tensorflow:Calling model_fn") for line in lines)
    assert any(line.startswith("INFO:tensorflow:Loss for final step") for line in lines)
    # The bar's own text is on none of them.
    assert not any("━" in line or "so far" in line for line in lines)


def test_the_terminal_keeps_its_cursor(on_cores):
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    sent, _ = on_cores
    assert sent.rfind(shown) > sent.rfind(hidden) >= 0


@pytest.mark.parametrize(
    ("options", "term", "draws"),
    [
        ({}, "xterm", True),
        ({"progress": "bar"}, "xterm", True),
        ({}, "dumb", False),
        ({"progress": "log"}, "xterm", False),
        ({"progress": "off"}, "xterm", False),
        ({"progress": None}, "xterm", False),
        ({"log_step_count_steps": None}, "xterm", False),
    ],
)
def test_who_draws_and_who_logs(tmp_path, monkeypatch, caplog, options, term, draws):
    monkeypatch.setenv("TERM", term)
    with _terminal() as (stderr, sent):
        monkeypatch.setattr(sys, "stderr", stderr)
        with log_lines(caplog) as logged:
            _train(tmp_path, **options)
        shown = sent()
    assert ("━" in shown) == draws
    lines = [line for line in logged if line.startswith(("train: ", "Ran on "))]
    assert bool(lines) == (not draws and options in ({}, {"progress": "log"}))
    if draws:
        assert "train: step 3 of 3 (100 %), loss " in _plain(shown)
    else:
        assert not shown
    # The original's line is there in any case but one, and once in five seconds.
    said = sum(line.startswith("loss = ") for line in logged)
    assert said == ("log_step_count_steps" not in options)


def test_bars_may_be_asked_for_where_standard_error_is_no_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for mode, draws in (("auto", False), ("bar", True)):
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        _train(tmp_path / mode, progress=mode)
        assert ("━" in stream.getvalue()) == draws


def test_a_second_bar_is_not_drawn_over_the_first(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    first = bar_view(is_forced=True)
    assert first is not None and bar_view(is_forced=True) is None
    first.close()
    second = bar_view(is_forced=True)
    assert second is not None
    second.close()


def test_a_terminal_that_is_closed_ends_no_training(tmp_path, monkeypatch):
    class Closing(v1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            stderr.close()

    monkeypatch.setenv("TERM", "xterm")
    with _terminal() as (stderr, _):
        monkeypatch.setattr(sys, "stderr", stderr)
        _train(tmp_path, hooks=[Closing()])
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-3")


@row(
    "estimator",
    '`RunConfig(progress="loud")`',
    "progress must be one of 'auto', 'bar', 'log', 'off', or None, which is 'off'; got 'loud'",
)
def test_another_value_is_refused_at_once(refused):
    for make in (estimator.RunConfig, tpu.RunConfig, tpu.RunConfig().replace):
        with refused(ValueError):
            make(progress="loud")


def test_copies_and_pickles_keep_the_setting():
    config = tpu.RunConfig(progress="log")
    assert copy.deepcopy(config).progress == config.replace(model_dir="x").progress == "log"
    assert pickle.loads(pickle.dumps(config)).progress == "log"
    assert estimator.RunConfig().progress == "auto"
    assert repr(config) == "RunConfig(progress='log')"
