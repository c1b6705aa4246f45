"""From batches of predictions to what predict() yields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def select_predictions(predictions: Any, predict_keys: Sequence[str] | str | None) -> Any:
    """Keeps the predictions that were asked for."""
    if not predict_keys:
        return predictions
    if not isinstance(predictions, Mapping):
        raise ValueError(
            "predict_keys argument is not valid in case of non-dict predictions; got "
            f"{predict_keys!r} for {predictions!r}."
        )
    if not isinstance(predict_keys, Iterable):
        raise TypeError(f"predict_keys must be a name or a list of names; got {predict_keys!r}.")
    wanted = {predict_keys} if isinstance(predict_keys, str) else set(predict_keys)
    kept = {name: value for name, value in predictions.items() if name in wanted}
    if not kept:
        raise ValueError(
            f"Expected to run at least one output from {sorted(predictions)}, provided "
            f"{sorted(wanted)}."
        )
    return kept


def single_rows(batches: Iterable[Any]) -> Iterator[Any]:
    """Yields the rows of batches, one by one."""
    for batch in batches:
        if not isinstance(batch, Mapping):
            _check_has_rows("predictions", batch)
            yield from batch
            continue
        _check_batch_length(batch)
        yield from _rows_of(batch)


def _rows_of(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Takes a batch apart, column by column.

    A mapping made whole, of pairs of a name and a value, takes almost twice the time for each row.
    """
    columns = iter(batch.items())
    first, values = next(columns, ("", ()))
    rows = [{first: value} for value in values]
    for name, values in columns:
        for row, value in zip(rows, values):
            row[name] = value
    return rows


def _check_has_rows(name: str, value: Any) -> None:
    if not value.shape:
        raise ValueError(
            f"{name} must have the batch as its first dimension, but is the scalar {value}. Use "
            "yield_single_examples=False for predictions that are not one per row."
        )


def _check_batch_length(batch: Mapping[str, Any]) -> None:
    for name, value in batch.items():
        _check_has_rows(f"predictions[{name}]", value)
    lengths = {name: value.shape[0] for name, value in batch.items()}
    first = next(iter(lengths.values()), None)
    for name, length in lengths.items():
        if length == first:
            continue
        raise ValueError(
            f"Batch length of predictions should be same. {name} has different batch length than "
            f"others. Lengths: {lengths}. Use "
            "yield_single_examples=False for predictions that are not one per row."
        )
