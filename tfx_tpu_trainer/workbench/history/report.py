"""Gathers a run's results from ML Metadata and the model into plain values."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import ml_metadata

from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus, State

REPORT = "report.json"
"""Name of the file, in the folder of the run's log."""

# The step's name among an estimator's metrics.
STEP = "global_step"

# The most complete one of this many rows is shown, since a row of missing values is not an example.
ROWS_TO_CHOOSE_FROM = 50


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a run failed.

    Attributes:
        node: The component that failed; None if none had begun.
        message: One line.
    """

    node: str | None
    message: str


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A real row of the eval split, and the model's prediction."""

    # The model's features, as short texts.
    row: dict[str, str]
    # Features that the model does not get, such as the label's sources.
    withheld: dict[str, str]
    # Each output's values as text.
    outputs: dict[str, str]


@dataclasses.dataclass(frozen=True)
class RunReport:
    """The results of a run."""

    failure: Failure | None = None
    # Its name in ML Metadata; None if TFX has not begun one.
    run: str | None = None
    # The last recorded training loss.
    train_loss: float | None = None
    train_step: int | None = None
    # The step of the evaluated checkpoint; None if there is none.
    trained_steps: int | None = None
    # Where it was trained, such as "4 emulated TPU cores"; None if unknown.
    ran_on: str | None = None
    eval_metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    # The number of evaluated rows.
    eval_examples: int | None = None
    # The metrics of each evaluation in training, with its step as `global_step`.
    learning_curve: list[dict[str, float]] = dataclasses.field(default_factory=list)
    # The step of the best evaluation; None if unknown.
    best_step: int | None = None
    # The best params of a hyperparameter search with its number of trials; empty without a search.
    best_params: dict[str, Any] = dataclasses.field(default_factory=dict)
    trials: int = 0
    # Whether the gate blessed the model; None if it did not judge.
    blessed: bool | None = None
    verdict: str = ""
    # A diagnosis, from the losses, of a model that was not blessed; None if a loss is unknown.
    advice: str | None = None
    pushed: str | None = None
    # The component that pushes blessed models; None if there is none.
    pusher: str | None = None
    # The folder of the described model: the pushed one if there is one.
    model: str | None = None
    # Signature names by tags, such as `serve, tpu`.
    signatures: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    prediction: Prediction | None = None
    # The folder of checkpoints and TensorBoard events.
    model_run: str | None = None
    # The folder for TensorBoard; None if it is `model_run`.
    tensorboard: str | None = None
    # The path of the run's page.
    page: str | None = None

    def compared_losses(self) -> str | None:
        """Returns a diagnosis, from the losses, of a model that was not blessed; None if a loss is unknown."""
        from tfx_tpu_trainer.components.evaluation import compare_losses

        measured = self.learning_curve[-1] if self.learning_curve else self.eval_metrics
        if self.blessed is not False or self.train_loss is None or "loss" not in measured:
            return None
        return compare_losses(self.train_loss, measured["loss"])

    def write(self, path: Path) -> None:
        """Writes the report as JSON, completely or not at all."""
        write_whole(path, json.dumps(dataclasses.asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> RunReport | None:
        """Reads a report; None if the run ended before writing one."""
        if not path.exists():
            return None
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["failure"]:
            values["failure"] = Failure(**values["failure"])
        if values["prediction"]:
            values["prediction"] = Prediction(**values["prediction"])
        return cls(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunArtifacts:
    """A run's artifacts in ML Metadata; `None` if there are none."""

    model: Any
    # Checkpoints and TensorBoard events.
    model_run: Any
    # The gate's blessing.
    blessing: Any
    # The Pusher's result.
    pushed_model: Any
    # The Pusher's node name.
    pusher: str | None
    examples: Any
    # The Tuner's result.
    best_hyperparameters: Any
    tuner_results: Any


def find_artifacts(store: ml_metadata.MetadataStore, run: str) -> RunArtifacts:
    """Finds a run's artifacts."""
    produced = {
        node: metadata.outputs(store, status.execution_id)
        for node, status in metadata.node_statuses(store, run).items()
    }
    model = _artifact(produced, "model", node_with="model_run")
    model_run = _artifact(produced, "model_run")
    for artifact in filter(None, (model, model_run)):
        if not os.path.isdir(artifact.uri):
            raise FileNotFoundError(f"{artifact.uri!r} does not exist")
    return RunArtifacts(
        model=model,
        model_run=model_run,
        blessing=_artifact(produced, "blessing"),
        pushed_model=_artifact(produced, "pushed_model"),
        pusher=next((node for node in produced if "pushed_model" in produced[node]), None),
        examples=_artifact(produced, "examples"),
        best_hyperparameters=_artifact(produced, "best_hyperparameters"),
        tuner_results=_artifact(produced, "tuner_results"),
    )


def collect(
    store: ml_metadata.MetadataStore, run: str, *, serving_absent: Collection[str]
) -> RunReport:
    """Gathers the report of a successful run."""
    from tfx_tpu_trainer.components.evaluation import read_eval_metrics, read_learning_curve

    made = find_artifacts(store, run)
    model, model_run, blessing = made.model, made.model_run, made.blessing
    metrics = read_eval_metrics(model.uri) if model else None
    train_step, train_loss = last_scalar(model_run.uri, "loss") if model_run else (None, None)
    curve = read_learning_curve(model_run.uri) if model_run else None
    pushed = _pushed_folder(made.pushed_model)
    served = pushed if pushed and os.path.isdir(pushed) else None
    served = served or (os.path.join(model.uri, "Format-Serving") if model else None)
    examples = made.examples
    report = RunReport(
        train_loss=train_loss,
        train_step=train_step,
        trained_steps=metrics.global_step if metrics else None,
        ran_on=(model.custom_properties["ran_on"].string_value or None) if model else None,
        eval_metrics={name: float(value) for name, value in metrics.overall.items()}
        if metrics
        else {},
        eval_examples=metrics.num_examples if metrics else None,
        learning_curve=_points(curve) if curve else [],
        best_step=curve.best.step if curve and curve.best else None,
        best_params=_read_json(made.best_hyperparameters, {"values": {}})["values"],
        trials=len(_read_json(made.tuner_results, [])),
        blessed=was_blessed(blessing),
        verdict=blessing.custom_properties["verdict"].string_value if blessing else "",
        pushed=pushed,
        pusher=made.pusher,
        model=served,
        signatures=_signatures(served) if served else {},
        prediction=predict_one(served, examples.uri, serving_absent)
        if served and examples
        else None,
        model_run=model_run.uri if model_run else None,
    )
    # Computed here, since the runner that prints it imports no TensorFlow.
    return dataclasses.replace(report, advice=report.compared_losses())


def failed_nodes(statuses: Mapping[str, NodeStatus]) -> list[NodeStatus]:
    """Returns the failed components; TFX's local runner continues after one whose inputs it can't resolve."""
    return [status for status in statuses.values() if status.state is State.FAILED]


def last_scalar(folder: str, tag: str) -> tuple[int | None, float | None]:
    """Returns a scalar's last step and value in the TensorBoard events below a folder."""
    import tensorflow as tf

    last: tuple[int | None, float | None] = (None, None)
    # Evaluations write into folders named eval*; the training's events are at the top.
    for path in sorted(tf.io.gfile.glob(os.path.join(folder, "events.out.tfevents.*"))):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == tag and (last[0] is None or event.step >= last[0]):
                    last = (event.step, _scalar(value))
    return last


def predict_one(model: str, examples: str, absent: Collection[str]) -> Prediction:
    """Sends a real row of the eval split to an exported model, as a server's client would."""
    import tensorflow as tf

    files = sorted(tf.io.gfile.glob(os.path.join(examples, "Split-eval", "*")))
    records = tf.data.TFRecordDataset(files, compression_type="GZIP").take(ROWS_TO_CHOOSE_FROM)
    rows = [tf.train.Example.FromString(record) for record in records.as_numpy_iterator()]
    example = max(rows, key=_features_present)
    withheld = {name: _feature_text(example.features.feature[name]) for name in absent}
    for name in absent:
        del example.features.feature[name]
    # A session loads a model in a fraction of the time that `tf.saved_model.load` takes.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        load = without_notice(tf.compat.v1.saved_model.load)
        signature = load(session, ["serve"], model).signature_def["serving_default"]
        (argument,) = signature.inputs.values()
        answer = session.run(
            {name: output.name for name, output in signature.outputs.items()},
            {argument.name: [example.SerializeToString()]},
        )
    present = {
        name: feature for name, feature in example.features.feature.items() if _size(feature)
    }
    return Prediction(
        row={name: _feature_text(present[name]) for name in sorted(present)},
        withheld=withheld,
        outputs={
            name: _values_text(value[0].reshape(-1).tolist())
            for name, value in sorted(answer.items())
        },
    )


def _artifact(
    produced: Mapping[str, Mapping[str, Any]], key: str, *, node_with: str | None = None
) -> Any:
    """Returns the artifact of an output key; with `node_with`, of a component that also has that key."""
    for outputs in produced.values():
        if key in outputs and (node_with is None or node_with in outputs):
            return outputs[key]
    return None


def _read_json(artifact: Any, otherwise: Any) -> Any:
    """Returns the content of an artifact's only file."""
    if artifact is None:
        return otherwise
    (file,) = (path for path in Path(artifact.uri).iterdir() if path.is_file())
    return json.loads(file.read_text(encoding="utf-8"))


def _pushed_folder(artifact: Any) -> str | None:
    if artifact is None or not artifact.custom_properties["pushed"].int_value:
        return None
    return artifact.custom_properties["pushed_destination"].string_value or artifact.uri


def _points(curve: Any) -> list[dict[str, float]]:
    return [
        {**{name: float(value) for name, value in point.metrics.overall.items()}, STEP: point.step}
        for point in curve.points
    ]


def was_blessed(artifact: Any) -> bool | None:
    """Returns whether a gate blessed a model; `None` if there is no ModelBlessing, or no judgement."""
    if artifact is None or "blessed" not in artifact.custom_properties:
        return None
    return bool(artifact.custom_properties["blessed"].int_value)


def _signatures(model: str) -> dict[str, list[str]]:
    from tfx_tpu_trainer.serving import describe_saved_model

    return {
        ", ".join(graph.tags): sorted(graph.signatures) for graph in describe_saved_model(model)
    }


def _scalar(value: Any) -> float:
    import tensorflow as tf

    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    return float(tf.make_ndarray(value.tensor))


def _size(feature: Any) -> int:
    kind = feature.WhichOneof("kind")
    return len(getattr(feature, kind).value) if kind else 0


def _features_present(example: Any) -> int:
    return sum(1 for feature in example.features.feature.values() if _size(feature))


def _feature_text(feature: Any) -> str:
    values = list(getattr(feature, feature.WhichOneof("kind")).value) if _size(feature) else []
    return _values_text(
        [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values]
    )


def _values_text(values: list[Any]) -> str:
    shown = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
    if len(shown) > 10:
        return f"{', '.join(shown[:4])}, ... ({len(shown)} values)"
    return ", ".join(shown) if shown else "missing"
