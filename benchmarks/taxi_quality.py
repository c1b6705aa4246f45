"""`python -m benchmarks.taxi_quality --root runs/taxi`: compares the taxi model with a Keras one.

Trains the taxi model in TpuTrainer and a Keras wide-and-deep of the same size in the stock Trainer,
both on the Transform output of a finished taxi run, and prints accuracy and AUC on the eval split.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import pydantic
from rich.console import Console
from rich.table import Table

from pipelines.taxi.config import Config
from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.metadata import State
from tfx_tpu_trainer.workbench.run.local_runner import child_environment

METRICS = ("accuracy", "auc")


@click.command()
@click.option("--root", default="runs/taxi", show_default=True, help="Root of a finished taxi run.")
@click.option(
    "--seeds",
    type=click.IntRange(1, 1_000),
    default=5,
    show_default=True,
    help="How many models of each kind to train.",
)
def main(root: str, seeds: int) -> None:
    """Compares the taxi model with a Keras model of the same size, on a finished run's data."""
    if os.environ.get("TF_USE_LEGACY_KERAS") != "1":
        # Must precede TensorFlow's import; nothing has imported it yet.
        arguments = [sys.executable, "-m", "benchmarks.taxi_quality", *sys.argv[1:]]
        os.execve(sys.executable, arguments, child_environment())
    folder = Path(root).resolve()
    config = newest_config(folder)
    outputs = trained_outputs(folder)
    # Imported late: it imports TFX.
    from benchmarks.taxi_trainings import keras_trainer, tpu_trainer, train

    with tempfile.TemporaryDirectory() as scratch:
        results = {
            kind: [
                train(trainer, config, outputs, Path(scratch) / f"{kind}-{seed}", seed=seed)
                for seed in range(seeds)
            ]
            for kind, trainer in (("TpuTrainer", tpu_trainer), ("Keras", keras_trainer))
        }
    title = f"taxi, eval split, {config.trainer.train_steps} steps, {seeds} seeds"
    table = Table("trainer", "metric", "mean", "each", title=title)
    for kind, metrics in results.items():
        for name in METRICS:
            values = [each[name] for each in metrics]
            shown = ", ".join(f"{value:.4f}" for value in values)
            table.add_row(kind, name, f"{statistics.mean(values):.4f}", shown)
    Console(width=100).print(table)


def newest_config(root: Path) -> Config:
    """Returns the config of a root's newest run, as the runner resolved it."""
    found = sorted((root / "logs").glob("*/config.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise click.ClickException(f"no run below {root}; first: make demo")
    try:
        return Config.model_validate_json(found[-1].read_bytes())
    except pydantic.ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise click.ClickException(
            f"{found[-1]} is not a config of the taxi pipeline ({reason}); run it again with "
            "tfx-tpu-trainer run --pipeline taxi"
        ) from None


def trained_outputs(root: Path) -> dict[str, Any]:
    """Returns the newest run's model, with the Transform output and schema of its training."""
    try:
        store = metadata.open_store(root / "metadata.sqlite")
    except metadata.UnreadableError as error:
        raise click.ClickException(f"{error}; give the --root of a finished run") from None
    statuses = metadata.node_statuses(store, metadata.run_names(store)[-1])
    outputs: dict[str, Any] = {}
    for node in ("SchemaGen", "Transform", "TpuTrainer"):
        status = statuses.get(node)
        if status is None or status.state not in (State.COMPLETE, State.CACHED):
            raise click.ClickException(f"{node} has not completed in the newest run below {root}")
        outputs |= metadata.outputs(store, status.execution_id)
    return outputs


if __name__ == "__main__":
    main()
