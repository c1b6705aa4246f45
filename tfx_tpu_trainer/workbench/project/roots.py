"""A root: the folder in which a pipeline's runs are, and the file that records them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import ml_metadata

from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.config import ConfigError, PipelineConfig

METADATA_FILE = "metadata.sqlite"
LOGS = "logs"


@dataclasses.dataclass(frozen=True)
class Root:
    """Where runs are.

    Attributes:
        folder: The folder.
        metadata_file: ML Metadata's file.
    """

    folder: Path
    metadata_file: Path

    @classmethod
    def at(cls, path: str) -> Root:
        """The root at a path."""
        place = Path(os.path.abspath(os.path.expanduser(path)))
        if place.is_file():
            return cls(place.parent, place)
        return cls(place, place / METADATA_FILE)

    @classmethod
    def of(cls, config: PipelineConfig) -> Root:
        """The root of a project's runs."""
        return cls(Path(config.root), Path(config.metadata_file))

    def store(self) -> ml_metadata.MetadataStore:
        """Opens ML Metadata to read it."""
        if not self.metadata_file.is_file():
            raise ConfigError(
                f"{str(self.folder)!r} has no runs (no {self.metadata_file.name}); run the "
                "pipeline first, or give another root with --root"
            )
        try:
            return metadata.open_store(self.metadata_file)
        except metadata.UnreadableError as error:
            raise ConfigError(
                f"{error}; give the root of a pipeline's runs with --root, such as runs/taxi"
            ) from None

    def log_folder(self, began: float) -> Path | None:
        """The folder of a run's log, config and report."""
        before = [path for path in (self.folder / LOGS).glob("*") if path.is_dir()]
        return max((path for path in before if made(path) <= began), key=made, default=None)


def made(folder: Path) -> float:
    """When a run's folder was made, in seconds since 1970."""
    first = folder / "config.json"
    return (first if first.exists() else folder).stat().st_mtime
