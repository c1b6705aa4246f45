"""`tfx-tpu-trainer`: the commands' names, and how their errors are shown."""

from __future__ import annotations

import click

import tfx_tpu_trainer
from tfx_tpu_trainer._support.terminal import PrintableGroup
from tfx_tpu_trainer.workbench.cli.doctor import compat, doctor
from tfx_tpu_trainer.workbench.cli.inspect import inspect
from tfx_tpu_trainer.workbench.cli.new import new
from tfx_tpu_trainer.workbench.cli.preflight import preflight
from tfx_tpu_trainer.workbench.cli.runs import clean, compare, graph, history, report, run, show


@click.group(cls=PrintableGroup)
@click.version_option(tfx_tpu_trainer.__version__, prog_name="tfx-tpu-trainer")
def main() -> None:
    """Runs pipelines that train with TpuTrainer, and examines programs, models and runs."""


main.add_command(clean)
main.add_command(compare)
main.add_command(compat)
main.add_command(doctor)
main.add_command(graph)
main.add_command(history)
main.add_command(inspect)
main.add_command(new)
main.add_command(preflight)
main.add_command(report)
main.add_command(run)
main.add_command(show)

if __name__ == "__main__":
    main()
