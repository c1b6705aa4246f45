"""The taxi pipeline's components, as it declares them, each run alone with Beam arguments of a test's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor

from tfx_tpu_trainer.workbench.project.config_file import load_config
from tfx_tpu_trainer.workbench.project.project import find_pipeline

SPLITS = '["train", "eval"]'


def taxi_components(root: Path) -> dict[str, Any]:
    """The pipeline's components by name, with a BulkInferrer, and user code by import path.

    Workers have no part in what TFX packages: they import it, as those of an image do.
    """
    definition = find_pipeline("taxi")
    config = load_config(
        definition.config_class(),
        definition.config_file,
        values={"root": str(root), "user_code": "import"},
        overrides=["bulk_inference.splits=[eval]"],
    )
    config = config.model_copy(update={"data": definition.prepare_data(config)})
    return {node.id: node for node in definition.create_pipeline(config).components}


def artifact(kind: Any, uri: Path) -> Any:
    """An artifact that lies in a folder; one of examples has the pipeline's splits."""
    made = kind()
    made.uri = str(uri)
    if "split_names" in (kind.PROPERTIES or {}):
        made.split_names = SPLITS
    return made


def run_component(
    component: Any, inputs: Mapping[str, Path], folder: Path, beam_arguments: Sequence[str]
) -> Path:
    """Runs a component's own executor, as a container of its own would.

    Args:
        component: One of `taxi_components`.
        inputs: The folder of each input.
        folder: Where the outputs are written, each in a folder of its key.
        beam_arguments: Where its Beam job runs.

    Returns:
        `folder`.
    """
    outputs = {}
    for key, channel in component.outputs.items():
        outputs[key] = [artifact(channel.type, folder / key)]
        (folder / key).mkdir(parents=True)
    context = BaseBeamExecutor.Context(
        beam_pipeline_args=list(beam_arguments), tmp_dir=str(folder / "tmp"), unique_id="1"
    )
    types = {key: channel.type for key, channel in component.inputs.items()}
    component.executor_spec.executor_class(context).Do(
        {key: [artifact(types[key], uri)] for key, uri in inputs.items()},
        outputs,
        dict(component.exec_properties),
    )
    return folder
