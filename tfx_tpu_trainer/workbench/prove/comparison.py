"""Compares two sides' records: what is equal, what differs by rounding, and where a difference begins."""

import dataclasses
import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

EQUAL, ROUNDING, DIFFERENT = "equal", "equal up to rounding", "different"

# Sums in another order differ by some ulps of their largest term; one step's change may differ by this many.
_ROUNDING: Final = 84
# A rounding error grows at most by this factor per step; a fault is larger at once.
_GROWTH: Final = 4
# The fraction of all change since the first step that may differ at the end.
_MOST: Final = 2e-4
# For values computed from weights that differ by rounding.
_FOLLOWING: Final = 1e-3


@dataclasses.dataclass(frozen=True)
class Difference:
    """A place where two sides differ.

    Attributes:
        what: `"variable"`, `"loss"`, `"metric"`, ...
        name: Its name.
        says: Both sides' values, or the missing part.
        step: The global step; `None` if there is none.
        call: Number of the call in both records; `None` if there is none.
    """

    what: str
    name: str
    says: str
    step: int | None = None
    call: int | None = None

    @property
    def title(self) -> str:
        """Describes what differs and when."""
        when = "" if self.step is None else f"step {self.step}, "
        return f"{when}{self.what}" + ("" if self.name == self.what else f" {self.name}")


@dataclasses.dataclass
class Subject:
    """One thing that is compared, such as the losses of all steps.

    Attributes:
        name: Its name.
        compared: The number of values, arrays or names.
        ulps: The largest difference, in units of the last place of the array's largest number.
        where: The place of the largest difference.
        differences: The first ones that are not rounding, in order.
    """

    name: str
    compared: int = 0
    ulps: float = 0.0
    where: str = ""
    differences: list[Difference] = dataclasses.field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Returns the verdict on this subject alone."""
        if self.differences:
            return DIFFERENT
        return ROUNDING if self.ulps else EQUAL

    def note(self, measured: "Measured", where: str) -> None:
        """Counts a comparison, and keeps the largest difference."""
        self.compared += 1
        if measured.ulps > self.ulps:
            self.ulps, self.where = measured.ulps, where


@dataclasses.dataclass(frozen=True)
class Measured:
    """The distance of two arrays.

    Attributes:
        distance: The largest absolute difference; infinite if shapes, types or NaNs differ.
        scale: The largest absolute number of both.
        ulps: The distance in ulps of the scale; 0 for equal arrays.
        says: The numbers that are farthest apart, as text.
    """

    distance: float
    scale: float
    ulps: float
    says: str


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Arrays by name, each with the precision of its own type."""

    values: Mapping[str, np.ndarray]
    eps: Mapping[str, float]

    @classmethod
    def read(cls, path: str) -> "Arrays":
        """Reads the arrays that a recorder wrote."""
        with np.load(path) as file:
            names = [str(name) for name in file["names"]]
            values = {name: file[f"a{number}"] for number, name in enumerate(names)}
            return cls(values, dict(zip(names, map(float, file["eps"]))))


class Record:
    """The record of one side.

    Attributes:
        folder: Its folder.
        calls: The calls of its estimators, in order.
        models: The last checkpoint and the tags of each model_dir.
    """

    def __init__(self, folder: str) -> None:
        """Reads it."""
        self.folder = folder
        with open(os.path.join(folder, "record.json"), encoding="utf-8") as file:
            record = json.load(file)
        self.calls: list[dict[str, Any]] = record["calls"]
        self.models: list[dict[str, Any]] = record["models"]
        self.tensorflow: str = record["tensorflow"]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Returns the calls of one kind in order."""
        return [call for call in self.calls if call["kind"] == kind]

    def arrays(self, name: str) -> Arrays:
        """Reads arrays by the name of their file."""
        return Arrays.read(os.path.join(self.folder, name))

    def unheld(self) -> list[str]:
        """Returns the inputs that could not be made equal in the trainings."""
        return sorted({each for call in self.of_kind("train") for each in call["unheld"]})


def measure(one: np.ndarray, other: np.ndarray, eps: float) -> Measured:
    """Measures the difference of two arrays."""
    if one.shape != other.shape or one.dtype.kind != other.dtype.kind:
        return Measured(np.inf, np.inf, np.inf, f"{_type(one)} against {_type(other)}")
    if np.array_equal(one, other) or one.size == 0:
        return Measured(0.0, 0.0, 0.0, "")
    if one.dtype.kind not in "fc":
        first = int(np.flatnonzero(np.ravel(one != other))[0])
        return Measured(np.inf, np.inf, np.inf, _pair(one, other, first))
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    one, other = np.ravel(one).astype(wide), np.ravel(other).astype(wide)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(one - other))
    apart = np.where(np.isfinite(apart), apart, np.inf)
    finite = np.abs(np.concatenate([one, other]))
    scale = float(np.max(finite, where=np.isfinite(finite), initial=0.0))
    at = int(np.argmax(apart))
    distance = float(apart[at])
    if not distance:
        return Measured(0.0, scale, 0.0, "")
    return Measured(distance, scale, distance / ulp(scale, eps), _pair(one, other, at))


def ulp(scale: float, eps: float) -> float:
    """Returns the distance from a number to the next one of its type."""
    distance = eps * 2.0 ** float(np.floor(np.log2(scale))) if scale > 0 else 0.0
    return max(distance, float(np.finfo(np.float64).tiny))


def compare(original: Record, ours: Record) -> list[Subject]:
    """Compares two records.

    Returns:
        The subjects in the order in which a difference would show first.
    """
    calls = _compare_calls(original, ours)
    trained = _compare_trainings(original, ours)
    exact = all(each.verdict == EQUAL for each in trained)
    return [
        calls,
        *trained,
        _compare_checkpoints(original, ours),
        _compare_values("metrics", "metric", "evaluate", original, ours, exact=exact),
        _compare_values("predictions", "prediction", "predict", original, ours, exact=exact),
        _compare_tags(original, ours),
    ]


def _compare_calls(original: Record, ours: Record) -> Subject:
    subject = Subject("calls")
    for kind in ("train", "evaluate", "predict", "export"):
        counts = len(original.of_kind(kind)), len(ours.of_kind(kind))
        subject.compared += max(counts)
        if counts[0] != counts[1]:
            subject.differences.append(
                Difference("calls", kind, f"{counts[0]} against {counts[1]}")
            )
    return subject


def _compare_trainings(original: Record, ours: Record) -> list[Subject]:
    initial, losses, variables = Subject("initializers"), Subject("losses"), Subject("variables")
    for one, other in zip(original.of_kind("train"), ours.of_kind("train")):
        if "own" in one and "own" in other:
            _compare_initial(
                initial, original.arrays(one["own"]), ours.arrays(other["own"]), one["number"]
            )
        _compare_losses(losses, one, other)
        _compare_variables(variables, original, ours, one, other)
    return [initial, losses, variables]


def _compare_initial(subject: Subject, one: Arrays, other: Arrays, call: int) -> None:
    """Compares the initial values of both sides, or the distributions they are drawn from."""
    for name in one.values.keys() & other.values.keys():
        a, b = np.ravel(one.values[name]), np.ravel(other.values[name])
        subject.compared += 1
        if np.array_equal(a, b):
            continue
        # Kolmogorov-Smirnov: two samples of one distribution differ this much once in 10**9 times.
        both = np.sort(np.concatenate([a, b]))
        parts = [
            np.searchsorted(np.sort(each), both, side="right") / max(each.size, 1)
            for each in (a, b)
        ]
        limit = 3.28 * np.sqrt(1 / max(a.size, 1) + 1 / max(b.size, 1))
        if np.abs(parts[0] - parts[1]).max() > limit:
            says = " against ".join(
                f"mean {np.mean(each):.4g}, deviation {np.std(each):.4g}" for each in (a, b)
            )
            subject.differences.append(Difference("initializer", name, says, 0, call))


def _compare_losses(subject: Subject, one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    if one["steps"] != other["steps"]:
        first = next((a for a, b in zip(one["steps"], other["steps"]) if a != b), None)
        says = f"{len(one['steps'])} against {len(other['steps'])}"
        subject.differences.append(
            Difference("steps", "number of steps", says, first, one["number"])
        )
    before, eps = 0.0, float(np.finfo(np.float32).eps)
    for step, a, b in zip(one["steps"], one["losses"], other["losses"]):
        found = measure(np.array([a], np.float32), np.array([b], np.float32), eps)
        subject.note(found, f"step {step}")
        if (
            found.distance > _GROWTH * before + _ROUNDING * eps * found.scale
            or found.distance > _FOLLOWING * found.scale
        ):
            subject.differences.append(Difference("loss", "loss", found.says, step, one["number"]))
            return
        before = found.distance


def _compare_variables(
    subject: Subject,
    original: Record,
    ours: Record,
    one: Mapping[str, Any],
    other: Mapping[str, Any],
) -> None:
    """Compares the variables after each step, up to the first step with a difference."""
    before: dict[str, float] = {}
    last: Arrays | None = None
    start: Arrays | None = None
    for step in sorted(one["values"].keys() & other["values"].keys(), key=int):
        arrays = original.arrays(one["values"][step]), ours.arrays(other["values"][step])
        start = start or arrays[0]
        found: list[tuple[float, Difference]] = []
        for name in _in_both(
            subject, arrays[0].values, arrays[1].values, "variable", int(step), one["number"]
        ):
            eps = arrays[0].eps[name]
            measured = measure(arrays[0].values[name], arrays[1].values[name], eps)
            subject.note(measured, f"step {step}, {name}")
            if measured.distance:
                change = _change(last.values.get(name) if last else None, arrays[0].values[name])
                total = _change(start.values.get(name), arrays[0].values[name])
                rounding = 2 * ulp(measured.scale, eps)
                allowed = _GROWTH * before.get(name, 0.0) + rounding + _ROUNDING * eps * change
                allowed = min(allowed, int(step) * rounding + _MOST * total)
                if measured.distance > allowed:
                    says = Difference("variable", name, measured.says, int(step), one["number"])
                    found.append((measured.distance / allowed, says))
            before[name] = measured.distance
        if found or subject.differences:
            # The largest difference comes first.
            subject.differences += [each for _, each in sorted(found, key=lambda pair: -pair[0])]
            return
        last = arrays[0]


def _change(before: np.ndarray | None, after: np.ndarray) -> float:
    if before is None or before.shape != after.shape or after.dtype.kind != "f" or not after.size:
        return 0.0
    return float(np.abs(after.astype(np.float64) - before).max())


def _in_both(
    subject: Subject,
    one: Mapping[str, Any],
    other: Mapping[str, Any],
    what: str,
    step: int | None,
    call: int | None,
) -> Iterator[str]:
    """Yields the names that both sides have, and records the others."""
    for name in one:
        if name in other:
            yield name
        else:
            subject.differences.append(
                Difference(what, name, "only the original has it", step, call)
            )
    for name in other:
        if name not in one:
            subject.differences.append(
                Difference(what, name, "the original does not have it", step, call)
            )


def _compare_checkpoints(original: Record, ours: Record) -> Subject:
    subject = Subject("checkpoints")
    for one, other in zip(original.models, ours.models):
        arrays = original.arrays(one["checkpoint"]), ours.arrays(other["checkpoint"])
        _compare_arrays(subject, "variable", arrays, part=_FOLLOWING)
    return subject


def _compare_values(
    name: str, what: str, kind: str, original: Record, ours: Record, *, exact: bool
) -> Subject:
    """Compares metrics or predictions."""
    subject = Subject(name)
    for one, other in zip(original.of_kind(kind), ours.of_kind(kind)):
        if "values" in one and "values" in other:
            arrays = original.arrays(one["values"]), ours.arrays(other["values"])
            _compare_arrays(
                subject, what, arrays, part=None if exact else _FOLLOWING, call=one["number"]
            )
    return subject


def _compare_arrays(
    subject: Subject,
    what: str,
    arrays: tuple[Arrays, Arrays],
    *,
    part: float | None,
    call: int | None = None,
) -> None:
    for name in _in_both(subject, arrays[0].values, arrays[1].values, what, None, call):
        eps = arrays[0].eps[name]
        found = measure(arrays[0].values[name], arrays[1].values[name], eps)
        subject.note(found, name)
        if found.distance > (part or _ROUNDING * eps) * found.scale:
            subject.differences.append(Difference(what, name, found.says, None, call))


def _compare_tags(original: Record, ours: Record) -> Subject:
    subject = Subject("events' tags")
    for one, other in zip(original.models, ours.models):
        # This package adds its own tags.
        theirs = {tag: None for tag in other["tags"] if tag in one["tags"]}
        pair = dict.fromkeys(one["tags"]), theirs
        subject.compared += sum(1 for _ in _in_both(subject, *pair, "tag", None, None))
    return subject


def compare_answers(
    one: Mapping[str, Any],
    other: Mapping[str, Any],
    *,
    exact: bool,
    subjects: tuple[Subject, Subject],
    call: int,
) -> None:
    """Compares two exports by their signatures and their answers to the same sample."""
    signatures, answers = subjects
    for name in _in_both(
        signatures, one["signatures"], other["signatures"], "signature", None, call
    ):
        pair = one["signatures"][name], other["signatures"][name]
        signatures.compared += 1
        if pair[0] != pair[1]:
            signatures.differences.append(
                Difference("signature", name, f"{pair[0]} against {pair[1]}", None, call)
            )
    eps = {
        name: float(np.finfo(value.dtype).eps) if value.dtype.kind == "f" else 0.0
        for name, value in one["answers"].items()
    }
    arrays = Arrays(one["answers"], eps), Arrays(other["answers"], eps)
    _compare_arrays(answers, "answer", arrays, part=None if exact else _FOLLOWING, call=call)


@dataclasses.dataclass(frozen=True)
class FirstOp:
    """The first op of a step with a different output.

    Attributes:
        name: Its name; `None` if all ops on both sides are equal.
        says: Both sides' outputs.
        missing: Ops before it that only the original's program made.
        added: Ops before it that only ours made.
    """

    name: str | None
    says: str
    missing: tuple[str, ...]
    added: tuple[str, ...]


def find_first_op(original: Record, ours: Record, call: int) -> FirstOp | None:
    """Finds the first op with different outputs in the probed step of a training."""
    one, other = original.calls[call], ours.calls[call]
    if "ops" not in one or "ops" not in other:
        return None
    arrays = original.arrays(one["ops"]), ours.arrays(other["ops"])
    names = [list(each.values) for each in arrays]
    keys = [
        [(_stem(name), kind) for name, kind in zip(each, call["op_types"])]
        for each, call in zip(names, (one, other))
    ]
    missing: list[str] = []
    added: list[str] = []
    matcher = difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    for tag, first, end, new_first, new_end in matcher.get_opcodes():
        if tag != "equal":
            missing += names[0][first:end]
            added += names[1][new_first:new_end]
            continue
        for a, b in zip(names[0][first:end], names[1][new_first:new_end]):
            eps = arrays[0].eps[a]
            found = measure(arrays[0].values[a], arrays[1].values[b], eps)
            if found.distance > _ROUNDING * eps * found.scale:
                return FirstOp(b, found.says, tuple(missing), tuple(added))
    return FirstOp(None, "", tuple(missing), tuple(added)) if missing or added else None


def _stem(name: str) -> str:
    """Removes the numbers that make names unique, which an additional op on one side would shift."""
    return re.sub(r"_\d+(?=/|$)", "", name)


def first_difference(subjects: Iterable[Subject]) -> Difference | None:
    """Returns the first difference: by step, then by subject."""
    found = [each for subject in subjects for each in subject.differences[:1]]
    in_training = [each for each in found if each.step is not None]
    return min(
        in_training,
        key=lambda each: (each.call or 0, each.step or 0),
        default=next(iter(found), None),
    )


def verdict_of(subjects: Sequence[Subject]) -> str:
    """Returns the worst verdict."""
    return max((each.verdict for each in subjects), key=[EQUAL, ROUNDING, DIFFERENT].index)


def _type(value: np.ndarray) -> str:
    return f"{value.dtype}{list(value.shape)}"


def _pair(one: np.ndarray, other: np.ndarray, at: int) -> str:
    texts = [
        f"{np.ravel(each)[at]:.9g}" if each.dtype.kind == "f" else str(np.ravel(each)[at])[:60]
        for each in (one, other)
    ]
    return f"{texts[0]} against {texts[1]}" + (f" at element {at}" if one.size > 1 else "")
