"""Measures how much a TpuTrainer gains by parsing its rows once: `python -m benchmarks.parsed_rows`.

Each way to feed the wide-and-deep model has its own process and session; they take turns, so other load on the
machine affects all of them.
"""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import tensorflow as tf
from tensorflow_transform.tf_metadata import dataset_metadata, metadata_io, schema_utils
from tfx_bsl.public import tfxio

from benchmarks import data
from benchmarks.models import MODELS, make_model_fn
from tfx_tpu_trainer.components.inputs import RowCache, TransformedInput
from tfx_tpu_trainer.components.inputs._parsed_rows import parse_rows
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1

MODEL = MODELS["wide_and_deep"]
ROWS_AT_ONCE = 4096
STEPS = 1000
"""Steps of a turn: enough that batches read ahead before it, a few hundred, do not make it fast."""

PAUSE_SECS = 0.2
"""Wait before each turn, so the previous turn's read-ahead does not count for this one."""

FILES = 4
"""Number of files, of the same rows."""


@dataclasses.dataclass
class Turns:
    """The durations of one contender's turns, in wall and processor seconds."""

    run: Callable[[], object]
    # Rows or steps per turn.
    units: int
    # Seconds of the wall clock and of all threads.
    wall: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)

    def take(self) -> None:
        """Takes a turn."""
        time.sleep(PAUSE_SECS)
        wall, cpu = time.monotonic(), time.process_time()
        self.run()
        self.wall.append(time.monotonic() - wall)
        self.cpu.append(time.process_time() - cpu)

    @property
    def best(self) -> float:
        """Units per second in the least disturbed turn."""
        return self.units / min(self.wall)

    @property
    def per_processor(self) -> float:
        """Units per processor second in the median turn."""
        return self.units / statistics.median(self.cpu)


class Rows:
    """The wide-and-deep model's rows, in Transform's form."""

    def __init__(self, folder: Path, *, zipped: bool) -> None:
        """Writes them."""
        schema = schema_utils.schema_from_feature_spec(data.PARSED)
        metadata = dataset_metadata.DatasetMetadata(schema)
        metadata_io.write_metadata(metadata, str(folder / "transformed_metadata"))
        data.write_records(folder)
        self._folder, self._schema = folder, schema
        records = [each.numpy() for each in tf.data.TFRecordDataset(str(folder / data.RECORDS))]
        self.count = FILES * len(records)
        suffix, compression = (".gz", "GZIP") if zipped else ("", "")
        self.paths = [str(folder / f"rows-{number}{suffix}") for number in range(FILES)]
        for path in self.paths:
            with tf.io.TFRecordWriter(path, tf.io.TFRecordOptions(compression)) as writer:
                for record in records:
                    writer.write(record)

    def train_input(self, cache: RowCache | None = None) -> TransformedInput:
        """Returns the input of a TpuTrainer."""
        return TransformedInput(
            transform_graph_path=str(self._folder),
            file_patterns=self.paths,
            dataset_factory=lambda files, options, _: self._reader(files).TensorFlowDataset(
                options
            ),
            label_key=data.LABEL,
            shuffle_seed=1,
            cache=cache,
        )

    def parse_once(self) -> None:
        """Parses all rows and keeps them, like a TpuTrainer before its first step."""
        parse_rows(self.paths, data.PARSED, memory=1 << 30).close()

    def read_as_record_batches(self) -> None:
        """Parses all rows into record batches of Apache Arrow."""
        options = tfxio.RecordBatchesOptions(batch_size=ROWS_AT_ONCE, num_epochs=1, shuffle=False)
        for _ in self._reader(self.paths).RecordBatches(options):
            pass

    def read_by_accessor(self) -> None:
        """Parses all rows by TFX's data accessor, in the batches of the model."""
        with tf.Graph().as_default(), v1.Session() as session:
            dataset = self.train_input().eval_fn()({"batch_size": MODEL.batch_size})
            iterator = v1.data.make_initializable_iterator(dataset)
            drawn = tf.group(*tf.nest.flatten(iterator.get_next()))
            session.run(iterator.initializer)
            while True:
                try:
                    session.run(drawn)
                except tf.errors.OutOfRangeError:
                    return

    def _reader(self, files: Any) -> Any:
        return tfxio.TFExampleRecord(
            file_pattern=files, schema=self._schema, telemetry_descriptors=["benchmark"]
        )


def _steps(dataset_fn: Callable[[Mapping[str, Any]], tf.data.Dataset]) -> Callable[[], None]:
    """Opens the model's session in a graph like our estimators'; returns the function for one turn's steps."""
    with fresh_graph():
        iterator = v1.data.make_initializable_iterator(dataset_fn({"batch_size": MODEL.batch_size}))
        features, labels = iterator.get_next()
        spec = make_model_fn(MODEL, tpu)(features, labels, "train", {"use_tpu": False})
        session = v1.Session()
        session.run([v1.global_variables_initializer(), iterator.initializer])
        step = session.make_callable(spec.train_op)

    def turn() -> None:
        for _ in range(STEPS):
            step()

    return turn


def _one_batch(rows: Rows) -> Callable[[Mapping[str, Any]], tf.data.Dataset]:
    """Returns an input with a constant batch, the upper bound of speed."""

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        dataset = rows.train_input().train_fn()(params).take(1)
        return dataset.cache().repeat()

    return input_fn


def _measure(title: str, contenders: Mapping[str, Turns], rounds: int) -> None:
    base = next(iter(contenders.values()))
    for turns in contenders.values():
        turns.take()
        turns.wall.clear()
        turns.cpu.clear()
    order = list(contenders.values())
    for number in range(rounds):
        first = number % len(order)
        for turns in order[first:] + order[:first]:
            turns.take()
    click.echo(f"\n| {title} | per second, best turn | | per processor's second | |")
    click.echo("|---|---|---|---|---|")
    for name, turns in contenders.items():
        best, per_processor = turns.best, turns.per_processor
        click.echo(
            f"| {name} | {best:,.0f} | {best / base.best:.2f}x | {per_processor:,.0f} | "
            f"{per_processor / base.per_processor:.2f}x |"
        )


@click.command()
@click.option("--rounds", default=15, show_default=True, help="Turns of each.")
def main(rounds: int) -> None:
    """Measures how fast rows are parsed, and a wide-and-deep training from parsed rows."""
    for zipped in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            rows = Rows(Path(folder), zipped=zipped)
            kind = "gzip" if zipped else "not compressed"
            parsing = {
                "TFX's data accessor, batches of 512": rows.read_by_accessor,
                "parsed once: `tf.io.parse_example` on 4,096 rows, and kept": rows.parse_once,
                "tfx-bsl's record batches of 4,096 rows": rows.read_as_record_batches,
            }
            turns = {name: Turns(run, rows.count) for name, run in parsing.items()}
            _measure(f"rows ({kind})", turns, rounds // 3)
            cache = RowCache(rows_to_draw=None)
            inputs = {
                "one batch over and over": _one_batch(rows),
                "rows parsed once, from the second epoch on": rows.train_input(cache).train_fn(),
                "rows parsed in each epoch": rows.train_input().train_fn(),
            }
            steps = {name: Turns(_steps(each), STEPS) for name, each in inputs.items()}
            _measure(f"steps of 512 rows ({kind})", steps, rounds)


if __name__ == "__main__":
    main()
