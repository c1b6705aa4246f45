"""`tfx-tpu-trainer show RUN`: what came out of a run."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import click

from tfx_tpu_trainer.cli.project_options import project_options, root_of


@click.command(short_help="Shows what came out of a run.")
@click.argument("run", required=False)
@project_options
@click.option("--root", metavar="DIR", help="The root of the runs, in place of a project.")
def show(run: str | None, root: str | None, **project: Any) -> None:
    """Shows what came out of RUN, as its own summary did; of the newest run without one.

    RUN is a name that `history` lists, or the beginning of one. All is read again from ML Metadata and the artifacts.
    """
    found = root_of(root, **project)
    # What TensorFlow says of this machine while it starts is none of the answer.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    with _quiet():
        from tfx_tpu_trainer.runner.config import ConfigError
        from tfx_tpu_trainer.runner.show import print_run

        try:
            print_run(found, run)
        except ConfigError as error:
            raise click.ClickException(str(error)) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what libraries say of versions that end, at every import, and of functions that others call."""
    tensorflow = logging.getLogger("tensorflow")
    level = tensorflow.level
    tensorflow.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        tensorflow.setLevel(level)
