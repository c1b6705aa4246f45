"""`tfx-tpu-trainer preflight`: the TPU compiler on a model, before there is a TPU."""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

import click

from tfx_tpu_trainer.extras import of_extra

_MOST_ROWS = 2**31 - 1
_SHOWN = 100


class _Sizes(click.ParamType):
    """One integer or a list of them, as "1024" or "1024,2048"."""

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
                f"{shown}: give integers above 0, as 1024 or 1024,2048, and up to {_MOST_ROWS:,}",
                param,
                ctx,
            )
        return sizes


class _Names(click.ParamType):
    """Names with commas between."""

    name = "NAME[,NAME...]"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(each for each in re.split(r"[,\s]+", value.strip()) if each)


@click.command(short_help="Compiles a model for a TPU slice, without a TPU.")
@click.option("--module_file", metavar="FILE", help="The .py file with model_fn.")
@click.option("--module", metavar="NAME", help="Its import path, in place of --module_file.")
@click.option(
    "--function",
    metavar="MODULE:NAME",
    help="A tf.function with an input_signature, in place of a module with model_fn.",
)
@click.option(
    "--embeddings",
    metavar="FILE",
    help="Plans the tables of a JSON file for SparseCores, by their ids: buffers, HBM, balance.",
)
@click.option(
    "--tpu",
    type=_Names(),
    required=True,
    help="The slice, such as v5e:2x4 or v5e:8; a list of slices with --sweep.",
)
@click.option(
    "--num_slices",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Slices like it that train one model over the network.",
)
@click.option(
    "--batch_size",
    type=_Sizes(),
    required=True,
    help="Rows of a step over all replicas, of serve: of a request; a list with --sweep.",
)
@click.option(
    "--steps",
    type=_Names(),
    help=(
        "Of train, eval, predict and serve. Default: train,eval,predict, and serve where there is a "
        "--saved_model; with --sweep train."
    ),
)
@click.option(
    "--transform_output",
    metavar="FOLDER",
    help="Transform's transform_graph artifact: the features and vocabularies are read there.",
)
@click.option(
    "--feature_spec",
    metavar="FILE",
    help="A JSON file with the features, in place of --transform_output.",
)
@click.option("--label_key", metavar="NAME", help="The feature that is the label.")
@click.option("--params", metavar="JSON", help="Values for model_fn's params: a JSON object.")
@click.option(
    "--num_cores_per_replica",
    type=click.Choice([str(2**power) for power in range(8)]),
    metavar="N",
    help="TPU devices that a copy of the model is spread over. Default: 1.",
)
@click.option(
    "--input_partition_dims",
    metavar="JSON",
    help="How the input is cut for them, as TPUConfig has it: '[{\"image\": [1, 4, 1]}, null]'.",
)
@click.option("--saved_model", metavar="PATH", help="An exported model, for the step serve.")
@click.option("--sweep", is_flag=True, help="Prints the largest batch size that fits each slice.")
@click.option(
    "--measure_input",
    type=float,
    is_flag=False,
    flag_value=20.0,
    metavar="[SECONDS]",
    help="Reads the training's input for 20 s, or so many, up to 60: what the hosts can deliver.",
)
@click.option(
    "--price",
    "price_file",
    metavar="FILE",
    help="A JSON file with prices of chips: what the training costs.",
)
@click.option(
    "--rows_per_epoch", type=click.IntRange(min=1), help="With --price: rows of the training split."
)
@click.option(
    "--epochs",
    type=click.FloatRange(min=0, min_open=True),
    help="With --price: how often they are read; by default once.",
)
@click.option(
    "--train_steps", type=click.IntRange(min=1), help="With --price, in place of --epochs: steps."
)
@click.option(
    "--deadline",
    metavar="TIME",
    help="With --price: how long the training may take, as 4h or 90m; with --sweep, of all slices.",
)
@click.option(
    "--profile",
    metavar="FOLDER",
    help="Writes the compiled steps as a profile that XProf opens, with estimated times.",
)
@click.option("--json", "json_file", metavar="FILE", help="Writes the report as JSON too.")
@click.option("--html", "html_file", metavar="FILE", help="Writes the report as a page too.")
@click.option(
    "--libtpu_path", metavar="PATH", help="A libtpu.so in place of the installed package's."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds for the compilation of one step.",
)
@click.option(
    "--effort",
    type=float,
    metavar="NUMBER",
    help=(
        "From -1 to 1: what the compiler does for a fast program. -1 takes a fraction of the time and memory "
        "and makes a slower program of other HBM. Default: what it does by itself."
    ),
)
def preflight(**options: Any) -> None:
    """Compiles a model for a TPU slice with Google's TPU compiler, on this machine.

    Says whether each step compiles, how much HBM it needs, and how fast it can be at best. Needs
    x86-64 Linux and the extra `preflight`; no TPU. --embeddings compiles nothing.

    The exit code is 0 where all steps compile and fit, 1 where one does not, 2 where no report can
    be made.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    # Of Google's client libraries, which nothing here calls.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"google\.")
    with of_extra("preflight", for_what="The preflight"):
        if options["embeddings"] is not None:
            from tfx_tpu_trainer.cli.preflight_embeddings import run
        else:
            from tfx_tpu_trainer.cli.preflight_run import run

    if not run(options):
        raise SystemExit(1)
