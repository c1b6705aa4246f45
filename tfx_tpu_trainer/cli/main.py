"""`tfx-tpu-trainer`: the commands' names, and how their errors are shown."""

from __future__ import annotations

import click

import tfx_tpu_trainer
from tfx_tpu_trainer.cli.compat import compat
from tfx_tpu_trainer.cli.doctor import doctor
from tfx_tpu_trainer.cli.inspect import inspect
from tfx_tpu_trainer.cli.preflight import preflight
from tfx_tpu_trainer.terminal import PrintableGroup


@click.group(cls=PrintableGroup)
@click.version_option(tfx_tpu_trainer.__version__, prog_name="tfx-tpu-trainer")
def main() -> None:
    """Tools for models that tfx-tpu-trainer trains."""


main.add_command(compat)
main.add_command(doctor)
main.add_command(inspect)
main.add_command(preflight)

if __name__ == "__main__":
    main()
