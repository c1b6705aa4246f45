"""Compiles a pipeline for Kubeflow Pipelines: the declaration that also runs locally.

    python kubeflow/kubeflow_runner.py --pipeline taxi --root gs://bucket/taxi --data gs://bucket/taxi/data \
        --image region-docker.pkg.dev/project/images/pipelines:1 --output taxi.json

Nothing is submitted and no network is used. The image must hold `tfx_tpu_trainer` and, on its PYTHONPATH, `pipelines`:
user code is named by its import path.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from pipelines.config import ConfigError, load_config
from pipelines.registry import find_pipeline


@click.command(help=__doc__)
@click.option("--pipeline", "name", required=True, help="Name of a folder in pipelines/.")
@click.option("--root", required=True, help="Bucket or folder for everything that is written.")
@click.option("--data", required=True, help="Bucket or folder of the input data.")
@click.option("--image", required=True, help="Container image of the components.")
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--set", "overrides", multiple=True, help="A setting, as key=value.")
def main(
    name: str, root: str, data: str, image: str, output: Path, overrides: tuple[str, ...]
) -> None:
    try:
        compile_pipeline(
            name, root=root, data=data, image=image, output=output, overrides=overrides
        )
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{output}: compiled for Kubeflow Pipelines, image {image}")


def compile_pipeline(
    name: str,
    *,
    root: str,
    data: str,
    image: str,
    output: Path,
    overrides: tuple[str, ...] = (),
) -> None:
    """Writes the pipeline's specification, whole or not at all.

    Args:
        name: Name of a pipeline, as `pipelines.registry.find_pipeline` takes it.
        root: Where everything is written.
        data: Where the input data is.
        image: Container image of the components.
        output: The JSON file to write.
        overrides: Settings as `key=value`.

    Raises:
        ConfigError: If there is no such pipeline, or a setting does not hold.
    """
    definition = find_pipeline(name)
    config = load_config(
        definition.config_class(),
        definition.config_file,
        values={"root": root, "data": data, "user_code": "import"},
        overrides=overrides,
    )
    # Late, so that a wrong setting is told at once: TFX takes ten seconds to import.
    from tfx import v1 as tfx

    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        runner = tfx.orchestration.experimental.KubeflowV2DagRunner(
            config=tfx.orchestration.experimental.KubeflowV2DagRunnerConfig(default_image=image),
            output_dir=folder,
            output_filename=output.name,
        )
        runner.run(definition.create_pipeline(config), write_out=True)
        os.replace(os.path.join(folder, output.name), output)


if __name__ == "__main__":
    main()
