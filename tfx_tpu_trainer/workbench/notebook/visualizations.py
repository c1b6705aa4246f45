"""The pages as what TFX's `InteractiveContext.show` looks for."""

from __future__ import annotations

from typing import Any

from IPython.display import HTML, display
from tfx import v1 as tfx

from tfx_tpu_trainer.components.clusters import RunPage
from tfx_tpu_trainer.components.evaluation import BLESSED_PROPERTY, VERDICT_PROPERTY
from tfx_tpu_trainer.workbench.notebook import tfx_private
from tfx_tpu_trainer.workbench.notebook.pages import (
    blessing_page,
    evaluation_page,
    model_page,
    model_run_page,
    run_page,
)


class ModelVisualization(tfx_private.ArtifactVisualization):
    """Shows a Model's metrics and signatures."""

    ARTIFACT_TYPE = tfx.types.standard_artifacts.Model

    def display(self, artifact: tfx.dsl.Artifact) -> None:
        """Displays the page of the artifact."""
        display(HTML(model_page(artifact.uri)))


class ModelRunVisualization(tfx_private.ArtifactVisualization):
    """Shows a ModelRun's learning curve, and the page of its training."""

    ARTIFACT_TYPE = tfx.types.standard_artifacts.ModelRun

    def display(self, artifact: tfx.dsl.Artifact) -> None:
        """Displays the page of the artifact."""
        display(HTML(model_run_page(artifact.uri)))


class RunPageVisualization(tfx_private.ArtifactVisualization):
    """Shows a RunPage: the page of a training."""

    ARTIFACT_TYPE = RunPage

    def display(self, artifact: RunPage) -> None:
        """Displays the page of the artifact."""
        display(HTML(run_page(artifact.path)))


class ModelEvaluationVisualization(tfx_private.ArtifactVisualization):
    """Shows a ModelEvaluation's metrics by slice: TFX's own needs TFMA's widgets, and Jupyter's extension for them."""

    ARTIFACT_TYPE = tfx.types.standard_artifacts.ModelEvaluation

    def display(self, artifact: tfx.dsl.Artifact) -> None:
        """Displays the page of the artifact."""
        display(HTML(evaluation_page(artifact.uri)))


class ModelBlessingVisualization(tfx_private.ArtifactVisualization):
    """Shows a ModelBlessing's verdict in words."""

    ARTIFACT_TYPE = tfx.types.standard_artifacts.ModelBlessing

    def display(self, artifact: tfx.dsl.Artifact) -> None:
        """Displays the page of the artifact."""
        display(HTML(blessing_page(is_blessed(artifact), verdict_of(artifact))))


def is_blessed(blessing: tfx.dsl.Artifact) -> bool | None:
    """Tells whether a ModelBlessing blesses its model; `None` where nobody has judged it."""
    if not blessing.has_custom_property(BLESSED_PROPERTY):
        return None
    return bool(blessing.get_int_custom_property(BLESSED_PROPERTY))


def verdict_of(blessing: tfx.dsl.Artifact) -> str:
    """Returns the verdict of a ModelBlessing in words; `""` where it has none."""
    has_one = blessing.has_custom_property(VERDICT_PROPERTY)
    return blessing.get_string_custom_property(VERDICT_PROPERTY) if has_one else ""


_OURS = (
    ModelVisualization,
    ModelRunVisualization,
    RunPageVisualization,
    ModelEvaluationVisualization,
    ModelBlessingVisualization,
)


def register() -> None:
    """Makes `InteractiveContext.show` show these pages.

    Every new InteractiveContext registers TFX's own visualization of a ModelEvaluation again: call this after it has
    been made. `%load_ext tfx_tpu_trainer.workbench.notebook` sees to it by itself.
    """
    registry: Any = tfx_private.get_registry()
    for each in _OURS:
        registry.register(each)
