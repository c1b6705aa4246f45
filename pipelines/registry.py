"""Finds a pipeline by name: a folder with `config.yaml`, `config.py`, `data.py` and `pipeline.py`."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
from pathlib import Path
from typing import Any

from pipelines.config import ConfigError, PipelineConfig


@dataclasses.dataclass(frozen=True)
class PipelineDefinition:
    """A pipeline's parts, imported when they are needed: reading its config must not import TFX.

    Attributes:
        package: Import path of its folder, such as `pipelines.taxi`.
        folder: The folder.
    """

    package: str
    folder: Path

    @property
    def config_file(self) -> Path:
        """The YAML file beside the pipeline."""
        return self.folder / "config.yaml"

    def config_class(self) -> type[PipelineConfig]:
        """The class `Config` of its `config.py`."""
        name = f"{self.package}.config"
        try:
            return importlib.import_module(name).Config
        except (ImportError, SyntaxError, AttributeError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(
                f"the pipeline {self.package!r} has no usable config ({reason}); give it a module {name} with a "
                "class Config"
            ) from None

    def prepare_data(self, config: PipelineConfig) -> str:
        """Calls `prepare_data` of its `data.py`: the folder of input data."""
        return importlib.import_module(f"{self.package}.data").prepare_data(config)

    def create_pipeline(self, config: PipelineConfig) -> Any:
        """Calls `create_pipeline` of its `pipeline.py`: the TFX pipeline."""
        return importlib.import_module(f"{self.package}.pipeline").create_pipeline(config)


def pipeline_names() -> list[str]:
    """The pipelines of this folder."""
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/config.yaml"))


def find_pipeline(name: str) -> PipelineDefinition:
    """Finds a pipeline.

    Args:
        name: The name of a folder here, or the import path of a pipeline's package elsewhere (it
            has a dot).

    Returns:
        The pipeline's definition.

    Raises:
        ConfigError: If there is none of that name.
    """
    package = name if "." in name else f"pipelines.{name}"
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        # Also of a name such as '../../x', which would be relative.
        spec = None
    folders = list(spec.submodule_search_locations or []) if spec else []
    if not folders or not (Path(folders[0]) / "config.yaml").exists():
        names = pipeline_names()
        nearest = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise ConfigError(
            f"there is no pipeline {name!r}; {hint}Pipelines here: {', '.join(names)}; one elsewhere is given by the "
            "import path of its package, a folder with config.yaml"
        )
    return PipelineDefinition(package, Path(folders[0]))
