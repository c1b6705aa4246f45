"""Reads a training's scalars from TensorBoard event files in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import as_pattern
from tfx_tpu_trainer.components.report._run_data import TRAINING, Learning, Restart, Series

v1 = tf.compat.v1

_FILES = "*tfevents*"
# A longer scalar is thinned to between half of this number and this number of points.
_MOST_POINTS = 600


def read_learning(folder: str) -> tuple[Learning, tuple[str, ...]]:
    """Reads the scalars that a training and its evaluations wrote.

    After a resume some steps occur twice; the later process's values count.
    """
    series: list[Series] = []
    restarts: tuple[Restart, ...] = ()
    unread: list[str] = []
    for source, below in _sources(folder):
        found = _Scalars(source)
        begins = []
        for path in _by_age(os.path.join(as_pattern(below), _FILES)):
            began = None
            try:
                for event in v1.train.summary_iterator(path):
                    # TensorFlow's hook writes this event after the session's first step, with that step's number.
                    if began is None and _begins_session(event):
                        began = Restart(step=max(0, event.step - 1), time=event.wall_time)
                    found.add(event)
            except tf.errors.OpError as error:
                unread.append(f"{path} is damaged and was read up to the damage: {error.message}")
            if began:
                begins.append(began)
        if source == TRAINING:
            # The first session began the training; later ones are restarts.
            restarts = tuple(sorted(begins, key=lambda began: began.time)[1:])
        series += found.series()
    return Learning(series=tuple(series), restarts=restarts), tuple(unread)


def _sources(folder: str) -> Iterator[tuple[str, str]]:
    yield TRAINING, folder
    for name in sorted(tf.io.gfile.listdir(folder)):
        below = os.path.join(folder, name.rstrip("/"))
        if tf.io.gfile.isdir(below) and tf.io.gfile.glob(os.path.join(as_pattern(below), _FILES)):
            yield name.rstrip("/"), below


def _by_age(pattern: str) -> list[str]:
    # File names begin with the second of their creation.
    return sorted(tf.io.gfile.glob(pattern))


def _begins_session(event: Any) -> bool:
    return event.HasField("session_log") and event.session_log.status == event.session_log.START


class _Scalars:
    """Scalars by name, thinned as they arrive."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._thinned: dict[str, _Thinned] = {}

    def add(self, event: Any) -> None:
        for value in event.summary.value:
            number = _number(value)
            if number is not None:
                self._thinned.setdefault(value.tag, _Thinned()).add(event.step, number)

    def series(self) -> list[Series]:
        return [
            Series(
                name=name,
                source=self._source,
                steps=tuple(thinned.values),
                values=tuple(thinned.values.values()),
                thinned_from=thinned.seen,
            )
            for name, thinned in sorted(self._thinned.items())
        ]


class _Thinned:
    """Keeps the last value of each stretch of steps; stretches double when there are too many."""

    # A training of a million steps has a million losses, but a chart has some hundred pixels. A random sample would
    # change from page to page, and taking every n-th value needs the length in advance. Stretches of 1, 2, 4, ... steps
    # need neither: at most 600 values are kept at any time, each was really measured, and the last one is always among
    # them.

    def __init__(self) -> None:
        self._stretch = 1
        self._last_step = -1
        # Index of the stretch -> step and value.
        self._kept: dict[int, tuple[int, float]] = {}
        self.seen = 0

    @property
    def values(self) -> dict[int, float]:
        return dict(self._kept.values())

    def add(self, step: int, value: float) -> None:
        stretch = step // self._stretch
        if step <= self._last_step:
            # A process that resumed from an earlier checkpoint repeats these steps.
            self._kept = {at: kept for at, kept in self._kept.items() if at < stretch}
        self._kept[stretch] = (step, value)
        self._last_step = step
        self.seen += 1
        if len(self._kept) > _MOST_POINTS:
            self._stretch *= 2
            self._kept = {kept[0] // self._stretch: kept for kept in self._kept.values()}


def _number(value: Any) -> float | None:
    """Returns a scalar as TF 1 or TF 2 writes it; `None` for anything else."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if value.HasField("tensor") and value.metadata.plugin_data.plugin_name == "scalars":
        array = tf.make_ndarray(value.tensor)
        return float(array) if array.shape == () and array.dtype.kind in "biuf" else None
    return None
