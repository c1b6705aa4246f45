"""`tfx-tpu-trainer`: the commands' names, and how their errors are shown."""

from __future__ import annotations

import click

import tfx_tpu_trainer
from tfx_tpu_trainer.cli.inspect import inspect


@click.group()
@click.version_option(tfx_tpu_trainer.__version__, prog_name="tfx-tpu-trainer")
def main() -> None:
    """Tools for models that were trained with tfx-tpu-trainer."""


main.add_command(inspect)

if __name__ == "__main__":
    main()
