"""`tfx-tpu-trainer inspect PATH`: what a SavedModel holds, and whether it passed its check."""

from __future__ import annotations

import json
import os

import click


@click.command(short_help="Shows what an exported model contains.")
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Prints one JSON object instead of tables.")
def inspect(path: str, as_json: bool) -> None:
    """Shows a model's tags, signatures, ops on the host and the TPU, size, warm-up and check results.

    PATH is a SavedModel's folder, a folder of versions (the newest is shown) or the uri of a Model
    artifact. Nothing is loaded: it works on any machine.
    """
    # What TensorFlow says of this machine while it starts is none of the answer.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tensorflow import errors

    from tfx_tpu_trainer.serving import overview
    from tfx_tpu_trainer.workbench.cli.inspect_tables import print_tables

    try:
        found = overview(path)
    except errors.OpError as error:
        reason = error.message.splitlines()[0]
        raise click.ClickException(
            f"{path} can't be read ({reason}): give a folder that you may read"
        ) from None
    except (FileNotFoundError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        print_tables(found)
