"""`tfx-tpu-trainer preflight`: compiles a model with the TPU compiler, without a TPU."""

import os
import re
import warnings
from typing import Any

import click

from tfx_tpu_trainer._support.imports import of_extra
from tfx_tpu_trainer.workbench.cli.runs import project_options

_MOST_ROWS = 2**31 - 1
_SHOWN = 100


class _Sizes(click.ParamType):
    """An integer or a list of them, such as "1024" or "1024,2048"."""

    name = "ROWS[,ROWS...]"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            sizes = tuple(int(each) for each in re.split(r"[,\s]+", value.strip()))
        except ValueError:
            sizes = (0,)
        if not 0 < min(sizes) <= max(sizes) <= _MOST_ROWS:
            shown = f"{value[:_SHOWN]!r}{'...' * (len(value) > _SHOWN)}"
            self.fail(
                f"{shown}: give integers from 1 to {_MOST_ROWS:,}, such as 1024 or 1024,2048",
                param,
                ctx,
            )
        return sizes


class _Names(click.ParamType):
    """Comma-separated names."""

    name = "NAME[,NAME...]"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(each for each in re.split(r"[,\s]+", value.strip()) if each)


@click.command(short_help="Compiles a model for a TPU slice, without a TPU.")
@project_options
@click.option("--module_file", metavar="FILE", help="The .py file with model_fn or build_model.")
@click.option("--module", metavar="NAME", help="The module's import path; replaces --module_file.")
@click.option(
    "--function",
    metavar="MODULE:NAME",
    help="A tf.function with an input_signature; replaces a module with model_fn.",
)
@click.option(
    "--tpu",
    type=_Names(),
    help="The slice, such as v5e:2x4 or v5e:8; with --sweep, a list of slices. Default in a project: trainer.tpu of "
    "its config; with --sweep, also one machine of v5e, v6e and v5p with 1 to 8 chips.",
)
@click.option(
    "--num_slices",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of such slices that train one model together over the network.",
)
@click.option(
    "--batch_size",
    type=_Sizes(),
    help="Rows of a step over all replicas; for serve, rows of a request; with --sweep, a list. Default in a project: "
    "its trainer's batch sizes.",
)
@click.option(
    "--steps",
    type=_Names(),
    help=(
        "Any of train, eval, predict and serve. Default: train,eval,predict, plus serve if "
        "--saved_model is given; with --sweep, train."
    ),
)
@click.option(
    "--transform_output",
    metavar="FOLDER",
    help="Transform's transform_graph artifact, which provides the features and vocabularies.",
)
@click.option(
    "--feature_spec",
    metavar="FILE",
    help="A JSON file with the features; replaces --transform_output.",
)
@click.option("--label_key", metavar="NAME", help="The feature that is the label.")
@click.option(
    "--params",
    metavar="JSON",
    help="Values for the params of model_fn or build_model: a JSON object.",
)
@click.option(
    "--num_cores_per_replica",
    type=click.Choice([str(2**power) for power in range(8)]),
    metavar="N",
    help="Number of TPU devices that one copy of the model is spread over. Default: 1.",
)
@click.option(
    "--input_partition_dims",
    metavar="JSON",
    help="How the input is partitioned over them, as in TPUConfig: '[{\"image\": [1, 4, 1]}, null]'.",
)
@click.option("--saved_model", metavar="PATH", help="An exported model, for the serve step.")
@click.option(
    "--sweep",
    is_flag=True,
    help="Compares slices: the largest batch size that fits each, and, with the training's length, time, price and "
    "the slice to choose.",
)
@click.option(
    "--choose",
    is_flag=True,
    help="Sweeps, and writes the cheapest slice that meets the deadline into the project's config: trainer.tpu, with "
    "spot or flex_start, and the batch size if --batch_size lists others.",
)
@click.option(
    "--measure_input",
    type=float,
    is_flag=False,
    flag_value=20.0,
    metavar="[SECONDS]",
    help="Measures how many rows the hosts can deliver, by reading the training input for SECONDS "
    "(default 20, at most 60).",
)
@click.option(
    "--price",
    "price_file",
    metavar="FILE",
    help="A JSON file with chip prices; the report then has the training's cost.",
)
@click.option(
    "--rows_per_epoch",
    type=click.IntRange(min=1),
    help="With --price: number of rows in the training split.",
)
@click.option(
    "--epochs",
    type=click.FloatRange(min=0, min_open=True),
    help="With --price: number of passes over these rows. Default: 1.",
)
@click.option(
    "--train_steps",
    type=click.IntRange(min=1),
    help="With --price: number of training steps; replaces --epochs.",
)
@click.option(
    "--deadline",
    metavar="TIME",
    help="With --price: how long the training may take, such as 4h or 90m; with --sweep, it "
    "applies to every slice.",
)
@click.option(
    "--start_up",
    metavar="TIME",
    help="With --price or --sweep: how long a slice is paid for before the first step. Default: 5m.",
)
@click.option(
    "--preempted_every",
    metavar="TIME",
    help="With Spot prices: how often a Spot slice is taken away, at the slow end. Default: 4h.",
)
@click.option(
    "--queue_time",
    metavar="TIME",
    help="With flex-start prices: how long a request waits for its slice, at the slow end. Default: 1d.",
)
@click.option(
    "--profile",
    metavar="FOLDER",
    help="Writes the compiled steps, with estimated times, as a profile for XProf.",
)
@click.option("--json", "json_file", metavar="FILE", help="Also writes the report as JSON.")
@click.option(
    "--html",
    "html_file",
    metavar="FILE",
    help="Also writes the report as an HTML page. Default in a project: "
    "below preflight/ of its root.",
)
@click.option(
    "--libtpu_path", metavar="PATH", help="The libtpu.so to use instead of the installed package's."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Longest time for compiling one step, in seconds.",
)
@click.option(
    "--effort",
    type=float,
    metavar="NUMBER",
    help=(
        "From -1 to 1: how hard the compiler optimizes. -1 takes a fraction of the time and memory, and makes a "
        "slower program, whose need of HBM may differ. Default: the compiler's own choice."
    ),
)
def preflight(**options: Any) -> None:
    """Compiles a model for a TPU slice with Google's TPU compiler, on this machine.

    Reports whether each step compiles, how much HBM it needs, and how fast it can run at best. Needs x86-64 Linux and
    the extra `preflight`, but no TPU.

    In a project, the model, its params, batch sizes, features and length are those of the project: only --tpu, --sweep
    or --choose is needed.

    The exit code is 0 if all steps compile and fit, 1 if one does not or --choose finds no slice, and 2 if no report
    can be made.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    # Warnings of Google's client libraries, which are not used here.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"google\.")
    with of_extra("preflight", for_what="The preflight"):
        # Reports a missing extra before importing TensorFlow, which takes seconds and logs messages.
        from tfx_tpu_trainer.hardware import TpuSpec  # noqa: F401
        from tfx_tpu_trainer.workbench.cli.preflight_run import run

    if not run(options):
        raise SystemExit(1)
