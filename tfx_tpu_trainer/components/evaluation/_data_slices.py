"""Defines slices of the eval split: which are measured, and their names in files, charts and sentences.

These are slices of data; TPU slices are in `hardware/`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf import json_format

if TYPE_CHECKING:
    # Imported late where it is used: importing TFMA takes seconds, and reading metrics does not need it.
    from tensorflow_model_analysis.proto import config_pb2

SliceValue = str | int | float

SliceKey = tuple[tuple[str, SliceValue], ...]
"""A slice in TFMA's form: pairs of a feature and a value, in the order of the names."""

OVERALL: SliceKey = ()
"""The whole eval split."""

OTHER_VALUE = "__OTHER__"
"""In a slice key: all values of a feature that are not measured one by one."""


def slice_name(key: SliceKey) -> str:
    """Names a slice like TFMA's views: `payment_type:Cash`, `day_X_hour:1_X_17`, `Overall`."""
    if not key:
        return "Overall"
    names, values = zip(*key)
    return "_X_".join(names) + ":" + "_X_".join(map(str, values))


def slice_in_words(key: SliceKey) -> str:
    """Names a slice for a sentence: `payment_type=Cash, hour=17`; '' is the whole split."""
    return ", ".join(f"{name}={value}" for name, value in key)


def parse_slicing_specs(specs: Any) -> tuple[config_pb2.SlicingSpec, ...]:
    """Reads slicing specs in any form that users may write."""
    from tensorflow_model_analysis.proto import config_pb2

    if isinstance(specs, str):
        try:
            specs = json.loads(specs)
        except RecursionError:
            raise ValueError(
                "slicing_specs is JSON nested too deeply: give a list of dicts."
            ) from None
        except ValueError as error:
            raise ValueError(
                f"slicing_specs={_shown(specs)} is not valid JSON: {error}. Give a list of dicts, "
                'such as [{"feature_keys": ["hour"]}].'
            ) from None
    if isinstance(specs, (Mapping, config_pb2.SlicingSpec)) or not isinstance(specs, Iterable):
        raise ValueError(
            f"slicing_specs={_shown(specs)} is not a list: give "
            "[tfma.SlicingSpec(feature_keys=['...']), ...]."
        )
    parsed = [_parse(spec) for spec in specs]
    # An empty spec is the whole split, which is always measured; the user's order is kept.
    unique = {
        spec.SerializeToString(deterministic=True): spec for spec in parsed if spec.ByteSize()
    }
    return tuple(unique.values())


def _shown(value: Any) -> str:
    # A message's repr spans several lines.
    return " ".join(repr(value).split())


def slicing_specs_to_json(specs: Iterable[config_pb2.SlicingSpec]) -> list[dict[str, Any]]:
    """Returns specs as plain dicts that `parse_slicing_specs` reads; equal specs give equal strings."""
    dicts = []
    for spec in specs:
        values = dict(sorted(spec.feature_values.items()))
        fields = {"feature_keys": sorted(spec.feature_keys), "feature_values": values}
        dicts.append({name: value for name, value in fields.items() if value})
    return dicts


def features_of(spec: config_pb2.SlicingSpec) -> tuple[str, ...]:
    """Returns the names of the features that a spec slices by, sorted."""
    return tuple(sorted({*spec.feature_keys, *spec.feature_values}))


def spec_in_words(spec: config_pb2.SlicingSpec) -> str:
    """Names the slices of a spec for a sentence: `payment_type=Cash, each hour`."""
    fixed = [f"{name}={value}" for name, value in sorted(spec.feature_values.items())]
    return ", ".join([*fixed, *(f"each {name}" for name in sorted(spec.feature_keys))])


def is_in_spec(key: SliceKey, spec: config_pb2.SlicingSpec) -> bool:
    """Returns whether a spec covers a slice."""
    import tensorflow_model_analysis as tfma

    return tfma.slicer.SingleSliceSpec(spec=spec).is_slice_applicable(key)


def count_slices(
    rows: Mapping[tuple, int], names: Sequence[str], spec: config_pb2.SlicingSpec
) -> Counter:
    """Counts the rows of each slice of a spec, by TFMA's own rules.

    A row with several values of a feature is in the slice of each; a row without a value of one of the
    spec's features is in none.
    """
    import tensorflow_model_analysis as tfma

    slicer = tfma.slicer.SingleSliceSpec(spec=spec)
    counts: Counter = Counter()
    for values, count in rows.items():
        # A single array of texts and numbers would turn the numbers into texts.
        features = {
            name: np.array(of_name)
            for name, of_name in zip(names, values)
            if len(of_name) and name in features_of(spec)
        }
        accessor = tfma.slicer.slice_accessor.SliceAccessor([features])
        for key in slicer.generate_slices(accessor):
            counts[key] += count
    return counts


def most_frequent(counts: Counter, max_slices: int) -> tuple[SliceKey, ...]:
    """Returns the slices with the most rows, in the order of their keys."""
    # Ties are broken by key, so two runs over the same rows measure the same slices.
    ranked = sorted(counts.items(), key=lambda item: (-item[1], _sortable(item[0])))
    return tuple(sorted((key for key, _ in ranked[:max_slices]), key=_sortable))


def other_slice(key: SliceKey, spec: config_pb2.SlicingSpec) -> SliceKey:
    """Returns the key of the slice that gathers the rest."""
    return tuple((name, OTHER_VALUE if name in spec.feature_keys else value) for name, value in key)


def _sortable(key: SliceKey) -> tuple:
    # Python can't compare text with numbers, so numbers sort first.
    return tuple((name, isinstance(value, str), value) for name, value in key)


def _parse(spec: Any) -> config_pb2.SlicingSpec:
    from tensorflow_model_analysis.proto import config_pb2

    parsed = config_pb2.SlicingSpec()
    if isinstance(spec, config_pb2.SlicingSpec):
        parsed.CopyFrom(spec)
    elif isinstance(spec, Mapping):
        values = {key: str(value) for key, value in dict(spec.get("feature_values") or {}).items()}
        try:
            json_format.ParseDict(
                {**spec, **({"feature_values": values} if values else {})}, parsed
            )
        except json_format.ParseError as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"slicing_specs has {dict(spec)!r}, which is not a SlicingSpec: {reason}. Its "
                "fields are feature_keys (a list of names) and feature_values (name -> value)."
            ) from None
    else:
        raise ValueError(
            f"slicing_specs has {_shown(spec)}: give a tfma.SlicingSpec, or a dict with feature_keys and "
            "feature_values."
        )
    if parsed.slice_keys_sql:
        raise ValueError(
            "slicing_specs has slice_keys_sql, which only the stock Evaluator runs: use feature_keys and "
            "feature_values."
        )
    both = set(parsed.feature_keys) & set(parsed.feature_values)
    if both:
        raise ValueError(
            f"slicing_specs names {sorted(both)} in feature_keys and in feature_values of one "
            "spec: name a feature in only one of them."
        )
    for name, value in parsed.feature_values.items():
        if not value:
            raise ValueError(f"slicing_specs has feature_values {name!r}: {value!r}; give a value.")
    return parsed
