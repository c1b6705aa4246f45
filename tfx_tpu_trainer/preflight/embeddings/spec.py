"""The file of `preflight --embeddings`: tables, features and where their ids come from.

{
  "tables": {"movies": {"vocabulary_size": 1000000, "dim": 64, "combiner": "sum"}},
  "optimizer": {"name": "Adagrad", "learning_rate": 0.1},
  "features": {
    "watched": {"table": "movies", "ids": {"files": "watched-*.npy"}},
    "asked_for": {"table": "movies", "ids": {"zipf": 1.1, "per_row": 1}}
  },
  "rows": 1000000
}
"""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.preflight._option_files import read_json_file
from tfx_tpu_trainer.preflight.embeddings.ids import FileIds, IdSource, ZipfIds, seed_of
from tfx_tpu_trainer.preflight.embeddings.layout import OPTIMIZER_SLOTS

_embedding = tf.tpu.experimental.embedding

_MOST = 2**31 - 1
_KEYS = ("tables", "features", "optimizer", "rows", "seed")
_TABLE_KEYS = ("vocabulary_size", "dim", "combiner", "optimizer")
_FEATURE_KEYS = ("table", "max_sequence_length", "ids")
_IDS = 'give {"files": "ids-*.npy"}, {"zipf": 1.1, "per_row": 10}, or no "ids" for the module\'s input_fn'


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingSpec:
    """Tables, features and their ids.

    Attributes:
        features: Name -> `tf.tpu.experimental.embedding.FeatureConfig`.
        optimizer: The optimizer of tables that have none of their own, or `None`.
        sources: Feature -> its ids; empty where they are read from an input_fn.
        rows: The most rows to read, or `None`: all.
    """

    features: Mapping[str, Any]
    optimizer: Any
    sources: Mapping[str, IdSource]
    rows: int | None

    @classmethod
    def read(cls, path: str) -> EmbeddingSpec:
        """Reads a file.

        Args:
            path: The file. Files that it names are next to it, or named in full.

        Returns:
            The spec.

        Raises:
            ValueError: It can't be read, or holds something else.
        """
        values = read_json_file("--embeddings", path)
        try:
            return cls.of(values, folder=os.path.dirname(os.path.abspath(path)))
        except ValueError as error:
            raise ValueError(f"--embeddings {path}: {error}") from None

    @classmethod
    def of(cls, values: Any, *, folder: str) -> EmbeddingSpec:
        """Checks the values of a file.

        Args:
            values: The JSON value.
            folder: The folder that paths start from.

        Returns:
            The spec.

        Raises:
            ValueError: A key is missing or unknown, or a value is of another kind.
        """
        whole = _object(values, "the file", _KEYS)
        tables = {
            name: _table(name, table) for name, table in _named(whole, "tables", "table").items()
        }
        rows = _integer(whole, "rows", "the file", least=1, default=None)
        seed = _integer(whole, "seed", "the file", least=0, default=0)
        features, sources = {}, {}
        for name, value in _named(whole, "features", "feature").items():
            features[name] = _feature(name, value, tables)
            if "ids" in value:
                sources[name] = _source(
                    name, value["ids"], features[name], folder=folder, rows=rows, seed=seed
                )
        if sources and len(sources) < len(features):
            missing = next(name for name in features if name not in sources)
            raise ValueError(
                f'feature {missing!r} has no "ids", but other features have: {_IDS} of all.'
            )
        unused = [
            name for name in tables if all(each.table.name != name for each in features.values())
        ]
        if unused:
            raise ValueError(f"no feature is looked up in table {unused[0]!r}: leave it out.")
        return cls(
            features=features,
            optimizer=_optimizer(whole["optimizer"], "the file") if "optimizer" in whole else None,
            sources=sources,
            rows=rows,
        )


def _table(name: str, value: Any) -> Any:
    where = f"table {name!r}"
    table = _object(value, where, _TABLE_KEYS)
    combiner = table.get("combiner", "mean")
    if combiner not in ("mean", "sum", "sqrtn"):
        raise ValueError(f"{where}: combiner is {combiner!r}; use mean, sum or sqrtn.")
    return _embedding.TableConfig(
        vocabulary_size=_integer(table, "vocabulary_size", where, least=1),
        dim=_integer(table, "dim", where, least=1),
        combiner=combiner,
        optimizer=_optimizer(table["optimizer"], where) if "optimizer" in table else None,
        name=name,
    )


def _feature(name: str, value: Any, tables: Mapping[str, Any]) -> Any:
    where = f"feature {name!r}"
    feature = _object(value, where, _FEATURE_KEYS)
    table = feature.get("table")
    if not isinstance(table, str) or table not in tables:
        raise ValueError(f"{where}: unknown table {table!r}; use one of {', '.join(tables)}.")
    length = _integer(feature, "max_sequence_length", where, least=0, default=0)
    return _embedding.FeatureConfig(table=tables[table], max_sequence_length=length, name=name)


def _optimizer(value: Any, where: str) -> Any:
    example = 'such as {"name": "Adagrad", "learning_rate": 0.1}'
    if not isinstance(value, dict) or value.get("name") not in OPTIMIZER_SLOTS:
        given = value.get("name") if isinstance(value, dict) else value
        raise ValueError(
            f"{where}: optimizer is {given!r}; give one of {', '.join(OPTIMIZER_SLOTS)}, {example}."
        )
    arguments = {key: each for key, each in value.items() if key != "name"}
    try:
        return getattr(_embedding, value["name"])(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: optimizer {value['name']}: {error}") from None


def _source(
    name: str, value: Any, feature: Any, *, folder: str, rows: int | None, seed: int
) -> IdSource:
    where = f"ids of feature {name!r}"
    if not isinstance(value, dict) or ("files" in value) == ("zipf" in value):
        raise ValueError(f"{where}: {_IDS}.")
    if "files" in value:
        ids = _object(value, where, ("files", "row_ends"))
        ends = ids.get("row_ends")
        if ends is not None and not isinstance(ends, str):
            raise ValueError(f"{where}: row_ends is {ends!r}; give a .npy file.")
        return FileIds(
            _files(ids["files"], where, folder),
            row_ends=None if ends is None else os.path.join(folder, ends),
        )
    ids = _object(value, where, ("zipf", "per_row"))
    exponent = ids["zipf"]
    if isinstance(exponent, bool) or not isinstance(exponent, (int, float)):
        exponent = -1
    if not 0 <= exponent <= 10:
        raise ValueError(
            f"{where}: zipf is {ids['zipf']!r}; give an exponent from 0 to 10, such as 1.1."
        )
    if rows is None:
        raise ValueError(f'{where}: a distribution needs "rows" in the file: how many to draw.')
    return ZipfIds(
        feature.table.vocabulary_size,
        exponent=exponent,
        per_row=_integer(ids, "per_row", where, least=1, default=1),
        rows=rows,
        seed=seed_of(seed, name),
    )


def _files(value: Any, where: str, folder: str) -> Sequence[str]:
    patterns = value if isinstance(value, list) else [value]
    if not patterns or not all(isinstance(each, str) for each in patterns):
        raise ValueError(f"{where}: files is {value!r}; give a .npy file, a pattern, or a list.")
    files: list[str] = []
    for pattern in patterns:
        path = os.path.join(folder, pattern)
        found = [path] if os.path.exists(path) else sorted(glob.glob(path))
        if not found:
            raise ValueError(f"{where}: the file {path} does not exist.")
        files.extend(found)
    return files


def _named(whole: Mapping[str, Any], key: str, kind: str) -> Mapping[str, Any]:
    values = whole.get(key)
    if not isinstance(values, dict) or not values or not all(values):
        raise ValueError(f'"{key}" is not an object with a name for each {kind}.')
    return values


def _object(value: Any, where: str, keys: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(
            f"{where} is not an object; give one with any of the keys {', '.join(keys)}."
        )
    unknown = [key for key in value if key not in keys]
    if unknown:
        raise ValueError(
            f"{where} has the unknown key {unknown[0]!r}; use any of {', '.join(keys)}."
        )
    return value


def _integer(
    values: Mapping[str, Any], key: str, where: str, *, least: int, default: Any = NotImplemented
) -> Any:
    value = values.get(key, default)
    if value is default and default is not NotImplemented:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        shown = "missing" if value is NotImplemented else repr(value)
        raise ValueError(f"{where}: {key} is {shown}; give an integer from {least} to {_MOST:,}.")
    return value
