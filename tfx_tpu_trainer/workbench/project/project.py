"""Finds a project: a folder with `config.yaml` and `pipeline.py`, and optionally `config.py` and `data.py`."""

import dataclasses
import difflib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tfx_tpu_trainer._support.file_systems import check_is_utf8
from tfx_tpu_trainer._support.messages import in_one_line
from tfx_tpu_trainer.workbench.project.config import ConfigError, PipelineConfig, ProjectConfig
from tfx_tpu_trainer.workbench.project.config_file import load_config

CONFIG_FILE = "config.yaml"
PIPELINE_FILE = "pipeline.py"
# The package in which names without dots are looked up.
EXAMPLES = "pipelines"


@dataclasses.dataclass(frozen=True)
class Project:
    """A project's parts, imported on demand, since reading its config must not import TFX.

    Attributes:
        folder: The folder.
        package: Import path of the folder, such as `pipelines.taxi`; empty if it is not a package, whose modules are
            imported by their own names.
        base: The folder from which relative paths in its config start.
    """

    folder: Path
    package: str
    base: Path

    @property
    def config_file(self) -> Path:
        """The project's YAML file."""
        return self.folder / CONFIG_FILE

    @property
    def import_root(self) -> Path:
        """The folder on `sys.path` when the project's modules are imported."""
        return self.folder.parents[self.package.count(".")] if self.package else self.folder

    @property
    def words(self) -> list[str]:
        """Returns a command's options with which another process finds the project."""
        if self.package and self.base != self.folder:
            return ["--pipeline", self.package]
        return ["--project", str(self.folder)]

    def config_class(self) -> type[PipelineConfig]:
        """Returns the class `Config` of its `config.py`; `ProjectConfig` if there is none.

        Raises:
            ConfigError: If the module can't be imported, or lacks the class.
        """
        if not (self.folder / "config.py").exists():
            return ProjectConfig
        try:
            found = self._module("config").Config
        # A SystemExit with code 0 would end the command as a success.
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"{self.folder / 'config.py'} has no usable config ({in_one_line(error)}{self._line(error)}); give it "
                "a class Config(PipelineConfig), or remove the file"
            ) from None
        if not (isinstance(found, type) and issubclass(found, PipelineConfig)):
            raise ConfigError(
                f"{self.folder / 'config.py'}: Config is not a PipelineConfig; derive it from "
                "tfx_tpu_trainer.workbench.project.config.PipelineConfig"
            )
        return found

    def _line(self, error: BaseException) -> str:
        """Describes which line of the project's modules raised an error; empty if none did."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).parent == self.folder]
        return f", {Path(own[-1].filename).name} line {own[-1].lineno}" if own else ""

    def config(
        self,
        *,
        config_file: str | Path | None = None,
        root: str | None = None,
        overrides: Sequence[str] = (),
    ) -> PipelineConfig:
        """Reads the project's config and makes its local paths absolute.

        Args:
            config_file: A YAML file instead of the project's own. Defaults to `None`: its own.
            root: A root instead of the config's, relative to the working directory. Defaults to `None`: the config's.
            overrides: Settings as `key=value`. Defaults to none.

        Returns:
            The config.

        Raises:
            ConfigError: If it can't be read, or a setting is invalid.
        """
        config_class = self.config_class()
        try:
            config = load_config(
                config_class,
                config_file or self.config_file,
                overrides=overrides,
                values={"root": root} if root is not None else None,
            )
        except ConfigError:
            raise
        # Pydantic handles a validator's ValueError, and passes all other exceptions.
        except Exception as error:
            line = self._line(error)
            if not line:
                raise
            raise ConfigError(
                f"{self.folder / 'config.py'} can't check the settings ({in_one_line(error)}{line}); correct it, or "
                "raise a ValueError that names the setting and the fix"
            ) from None
        paths = {
            key: getattr(config, key) for key in ("root", "data", "metadata_path", "serving_dir")
        }
        changed: dict[str, Any] = {
            key: _absolute(path, self.base) for key, path in paths.items() if path
        }
        if config.root == root:
            changed["root"] = _absolute(root, Path.cwd())
        of_trainer = {
            key: _absolute(path, self.base)
            for key in ("module_file", "checkpoint_root")
            if (path := getattr(config.trainer, key))
        }
        changed["trainer"] = config.trainer.model_copy(update=of_trainer)
        return config.model_copy(update=changed)

    @property
    def finds_data(self) -> bool:
        """Whether the project finds its input data itself if the config names none."""
        return (self.folder / "data.py").is_file()

    def prepare_data(self, config: PipelineConfig) -> str | None:
        """Calls its `data.py`'s `prepare_data`, or else uses the config's data folder."""
        if not self.finds_data:
            return config.data
        return self._module("data").prepare_data(config)

    def create_pipeline(self, config: PipelineConfig) -> Any:
        """Calls `create_pipeline` of its `pipeline.py`."""
        return self._module("pipeline").create_pipeline(config)

    def declared_pipeline(self, config: PipelineConfig) -> Any:
        """Makes the TFX pipeline for inspection, without its data.

        Raises:
            ConfigError: If the project's own code can't make it.
        """
        try:
            # Nothing is read, so the data folder may be missing.
            return self.create_pipeline(
                config.model_copy(update={"data": config.data or config.root})
            )
        # That code may raise anything, or exit.
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"the pipeline of {str(self.folder)!r} can't be made: {in_one_line(error)}"
            ) from None

    def check_module(self, name: str) -> None:
        """Checks that importing a module of the folder finds that module.

        Args:
            name: Import path of the module.

        Raises:
            ConfigError: If an installed module has its name.
        """
        top = name.partition(".")[0]
        mine = [self.folder / f"{top}.py", self.folder / top]
        if self.package or not any(path.exists() for path in mine):
            return
        self._on_path()
        spec = importlib.util.find_spec(top)
        places = [*(spec.submodule_search_locations or []), spec.origin] if spec else []
        if spec and not any(place and Path(place).is_relative_to(self.folder) for place in places):
            raise ConfigError(
                f"the module {name!r} of {str(self.folder)!r} has the name of an installed module "
                f"({spec.origin or places[0]}); give it another name"
            )

    def _module(self, name: str) -> ModuleType:
        self._on_path()
        if self.package:
            return importlib.import_module(f"{self.package}.{name}")
        file = self.folder / f"{name}.py"
        loaded = sys.modules.get(name)
        if loaded is not None and getattr(loaded, "__file__", None) == str(file):
            return loaded
        # Identified by its file: `config` and `data` are names that installed packages and other projects use, too.
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    def _on_path(self) -> None:
        # Last, so its files hide no module of Python or of a package.
        if str(self.import_root) not in sys.path:
            sys.path.append(str(self.import_root))


def load_project(folder: str | Path = ".") -> Project:
    """Finds the project in a folder.

    Args:
        folder: The folder. Defaults to the working directory.

    Returns:
        The project.

    Raises:
        ConfigError: If the folder is not a project.
    """
    path = Path(_absolute(str(folder), Path.cwd()))
    # A name that is too long is not a folder, either.
    if not os.path.isdir(path):
        raise ConfigError(
            f"the folder {str(folder)!r} does not exist; give a project's folder with --project"
        )
    if not (path / PIPELINE_FILE).is_file():
        raise ConfigError(
            f"{str(path)!r} is not a project: it has no {PIPELINE_FILE}; change to the folder that "
            "has it, or give it with --project, or name an example with --pipeline"
        )
    package, above = "", path
    while (above / "__init__.py").is_file() and above.name.isidentifier():
        package = f"{above.name}.{package}" if package else above.name
        above = above.parent
    return Project(folder=path, package=package, base=path)


def find_pipeline(name: str) -> Project:
    """Finds a project that is a package.

    Args:
        name: Its import path, as installed or below the working directory; without a dot, its name in the package
            `pipelines`.

    Returns:
        The project; relative paths in its config start from the working directory.

    Raises:
        ConfigError: If there is none of that name.
    """
    here = os.getcwd()
    if here not in sys.path:
        # Commands do not have it on the path; it comes last, like a project's folder.
        sys.path.append(here)
    package = name if "." in name else f"{EXAMPLES}.{name}"
    folders = _folders(package)
    if not folders or not (folders[0] / CONFIG_FILE).exists():
        names = pipeline_names()
        nearest = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {nearest[0]!r}? Pipelines" if nearest else "pipelines"
        raise ConfigError(
            f"unknown pipeline {name!r}; {hint} here: {', '.join(names) or 'none'}; name "
            "another by the import path of its package, or give its folder with --project"
        )
    return Project(folder=folders[0], package=package, base=Path(here))


def pipeline_names() -> list[str]:
    """Returns the projects in the package `pipelines`, if it exists."""
    return sorted(
        path.parent.name
        for folder in _folders(EXAMPLES)
        for path in folder.glob(f"*/{CONFIG_FILE}")
    )


def _folders(package: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        # Also for names such as '../../x', which would be relative.
        spec = None
    return [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []


def _absolute(path: str, base: Path) -> str:
    """Makes a local path absolute from its base, and expands `~`; a bucket's path stays."""
    if "://" in path:
        return path
    absolute = os.path.abspath(base / os.path.expanduser(path))
    try:
        check_is_utf8("path", absolute)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return absolute
