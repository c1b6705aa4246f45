"""A pipeline of components that only write files, for what becomes of them later."""

# No `from __future__ import annotations`: TFX's @component reads the annotations as types.

from pathlib import Path

from tfx import v1 as tfx

_artifacts = tfx.types.standard_artifacts
_dsl = tfx.dsl.components


@_dsl.component
def Train(  # noqa: N802
    model: _dsl.OutputArtifact[_artifacts.Model],
    model_run: _dsl.OutputArtifact[_artifacts.ModelRun],
    seed: _dsl.Parameter[int],
):
    """Writes a model, and one that was trained in its own folder."""
    for artifact in (model, model_run):
        Path(artifact.uri).mkdir(parents=True, exist_ok=True)
        (Path(artifact.uri) / "weights").write_bytes(bytes([seed]) * 1000)


@_dsl.component
def Gate(  # noqa: N802
    model: _dsl.InputArtifact[_artifacts.Model],
    blessing: _dsl.OutputArtifact[_artifacts.ModelBlessing],
    blessed: _dsl.Parameter[int],
):
    """Blesses a model or not."""
    Path(blessing.uri).mkdir(parents=True, exist_ok=True)
    blessing.set_int_custom_property("blessed", blessed)
    blessing.set_string_custom_property("current_model", model.uri)


@_dsl.component
def Push(  # noqa: N802
    model: _dsl.InputArtifact[_artifacts.Model],
    blessing: _dsl.InputArtifact[_artifacts.ModelBlessing],
    pushed_model: _dsl.OutputArtifact[_artifacts.PushedModel],
):
    """Pushes a blessed model."""
    Path(pushed_model.uri).mkdir(parents=True, exist_ok=True)
    pushed_model.set_int_custom_property("pushed", blessing.get_int_custom_property("blessed"))


def run(root: Path, *, seed: int, blessed: bool) -> None:
    """Runs the pipeline in this process.

    Args:
        root: Everything is written there, as the local runner does.
        seed: Of the model: another one is another model.
        blessed: Whether the gate blesses it.
    """
    train = Train(seed=seed)
    gate = Gate(model=train.outputs["model"], blessed=int(blessed))
    push = Push(model=train.outputs["model"], blessing=gate.outputs["blessing"])
    connection = tfx.orchestration.metadata.sqlite_metadata_connection_config(
        str(root / "metadata.sqlite")
    )
    tfx.orchestration.LocalDagRunner().run(
        tfx.dsl.Pipeline(
            pipeline_name="models",
            pipeline_root=str(root / "artifacts"),
            components=[train, gate, push],
            metadata_connection_config=connection,
            enable_cache=True,
        )
    )
