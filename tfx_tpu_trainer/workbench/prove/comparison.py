"""Compares two records: what is equal, what differs by rounding, and where a difference begins."""

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from tfx_tpu_trainer.workbench.prove.records import Entry, Record

EQUAL, ROUNDING, DIFFERENT = "equal", "equal up to rounding", "different"

SUBJECTS: Final = {
    "calls": "calls",
    "initializers": "initializer",
    "losses": "loss",
    "variables": "variable",
    "steps": "steps",
    "checkpoints": "variable",
    "metrics": "metric",
    "predictions": "prediction",
    "events' tags": "tag",
    "exports' signatures": "signature",
    "exports' answers": "answer",
}
"""What is compared, in the order in which a difference would show first; and the name of one of its values."""

# Sums in another order differ by some ulps of their largest term; this many are allowed in one step's change.
_ROUNDING: Final = 84
# A rounding error grows at most by this factor per step; a fault is larger at once.
_GROWTH: Final = 4
# The fraction of all change since the first step that may differ at the end.
_MOST: Final = 2e-4
# The fraction of a value that may differ where the weights differ by rounding.
_FOLLOWING: Final = 1e-3


@dataclasses.dataclass(frozen=True)
class Difference:
    """A value that differs: what it is, its name, both sides' values as text, and where they stand."""

    what: str
    name: str
    says: str
    entry: Entry

    @property
    def title(self) -> str:
        """Describes what differs and when."""
        when = "" if self.entry.step is None else f"step {self.entry.step}, "
        return f"{when}{self.what}" + ("" if self.name == self.what else f" {self.name}")


@dataclasses.dataclass
class Subject:
    """One thing that is compared, such as the losses of all steps."""

    name: str
    # How many arrays.
    compared: int = 0
    # The largest difference, in units of the last place of the largest number in the array or in a bias's kernel.
    ulps: float = 0.0
    where: str = ""
    # The first ones that are no rounding, in the program's order: which one is largest is up to the machine's rounding.
    differences: list[Difference] = dataclasses.field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The verdict on this subject alone."""
        if self.differences:
            return DIFFERENT
        return ROUNDING if self.ulps else EQUAL


@dataclasses.dataclass(frozen=True)
class Measured:
    """How far two arrays are apart at most, their largest number, and the two values as text.

    The distance is infinite, and the scale 0, where it can't be rounding.
    """

    distance: float = 0.0
    scale: float = 0.0
    ulps: float = 0.0
    says: str = ""


def measure(one: np.ndarray, other: np.ndarray, eps: float, scale: float = 0.0) -> Measured:
    """Measures the difference of two arrays of a type with this precision, and of at least this scale."""
    if one.shape != other.shape or one.dtype.kind != other.dtype.kind:
        types = [f"{each.dtype}{list(each.shape)}" for each in (one, other)]
        return Measured(np.inf, 0.0, np.inf, " against ".join(types))
    if np.array_equal(one, other):
        return Measured()
    one, other = np.ravel(one), np.ravel(other)
    if one.dtype.kind not in "fc":
        return Measured(np.inf, 0.0, np.inf, _pair(one, other, int(np.argmax(one != other))))
    wide = np.result_type(one, np.float64)
    one, other = one.astype(wide), other.astype(wide)
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other)
    apart[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
    apart[~np.isfinite(apart)] = np.inf
    sizes = np.abs(np.concatenate([one, other]))
    scale = float(np.max(sizes, where=np.isfinite(sizes), initial=scale))
    at = int(np.argmax(apart))
    distance = float(apart[at])
    if not distance:
        return Measured(scale=scale)
    return Measured(distance, scale, distance / ulp(scale, eps), _pair(one, other, at))


def ulp(scale: float, eps: float) -> float:
    """Returns the distance from a number to the next one of its type."""
    return max(eps * 2.0 ** float(np.floor(np.log2(scale or 1.0))), float(np.finfo(float).tiny))


def _pair(one: np.ndarray, other: np.ndarray, at: int) -> str:
    texts = [
        f"{each[at]:.9g}" if each.dtype.kind == "f" else str(each[at])[:60] for each in (one, other)
    ]
    return " against ".join(texts) + (f" at element {at}" if one.size > 1 else "")


def compare(original: Record, ours: Record) -> list[Subject]:
    """Compares two records by subject, in the order of `SUBJECTS`."""
    subjects: list[Subject] = []
    exact = False
    for name in SUBJECTS:
        if name == "checkpoints":
            exact = verdict_of(subjects) == EQUAL
        subject = Subject(name)
        subjects.append(subject)
        past: dict[str, _Past] = {}
        reached = 0
        for entry in original.entries:
            # After the first step with a difference, all steps differ.
            is_later = bool(entry.step and subject.differences)
            if entry.subject != name or entry not in ours.entries or is_later:
                continue
            step = entry.step or 0
            # A second training starts with the first one's differences, unless it trains another model.
            if step < reached:
                past = {}
            reached = step
            _compare_entry(subject, entry, original, ours, past, exact=exact)
    return subjects


@dataclasses.dataclass(frozen=True)
class _Past:
    """A value of the original at the first and at the last step, and how far ours was from it."""

    first: np.ndarray
    last: np.ndarray
    distance: float


def _compare_entry(
    subject: Subject,
    entry: Entry,
    original: Record,
    ours: Record,
    past: dict[str, _Past],
    *,
    exact: bool,
) -> None:
    (one, eps), (other, _) = original.read(entry), ours.read(entry)
    layers = _layer_scales(one) if subject.name in ("variables", "checkpoints") else {}
    for name in {**one, **other}:
        if name not in one:
            # This package adds some tags of its own.
            parts = 0.0 if subject.name == "events' tags" else np.inf
            says = "the original does not have it"
        elif name not in other:
            parts, says = np.inf, "only the original has it"
        elif subject.name == "initializers":
            parts, says = _compare_draws(one[name], other[name])
        else:
            measured = measure(one[name], other[name], eps[name], layers.get(name, 0.0))
            if measured.ulps > subject.ulps:
                step = "" if entry.step is None else f"step {entry.step}, "
                subject.ulps, subject.where = measured.ulps, f"{step}{name}"
            before = past.get(name, _Past(one[name], one[name], 0.0))
            past[name] = _Past(before.first, one[name], measured.distance)
            parts, says = 0.0, measured.says
            if measured.distance:
                allowed = _allowed(entry, measured, eps[name], before, one[name], exact=exact)
                parts = measured.distance / max(allowed, float(np.finfo(float).tiny))
        subject.compared += name in one and name in other
        if parts > 1:
            subject.differences.append(Difference(SUBJECTS[subject.name], name, says, entry))


def _allowed(
    entry: Entry, measured: Measured, eps: float, before: _Past, now: np.ndarray, *, exact: bool
) -> float:
    """Returns the largest distance that is rounding."""
    if entry.step is None:
        return measured.scale * (_ROUNDING * eps if exact else _FOLLOWING)
    rounding = 2 * ulp(measured.scale, eps)
    if entry.subject == "losses":
        change, most = measured.scale, _FOLLOWING * measured.scale
    else:
        change = _change(before.last, now)
        most = entry.step * rounding + _MOST * _change(before.first, now)
    return min(_GROWTH * before.distance + rounding + _ROUNDING * eps * change, most)


def _layer_scales(values: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns the largest number of each vector's kernel: a bias's gradient may be all rounding of its terms."""
    kernels: dict[tuple[str, str], float] = {}
    layers: dict[str, tuple[str, str]] = {}
    for name, value in values.items():
        layer, _, last = name.rpartition("/")
        # An optimizer's slot is named below its variable.
        layers[name] = (layer.rpartition("/")[0], last) if layer in values else (layer, "")
        if value.ndim > 1 and value.dtype.kind == "f" and np.isfinite(value).all():
            largest = float(np.abs(value).max(initial=0.0))
            kernels[layers[name]] = max(largest, kernels.get(layers[name], 0.0))
    return {
        name: kernels.get(layers[name], 0.0) for name, value in values.items() if value.ndim == 1
    }


def _change(before: np.ndarray, after: np.ndarray) -> float:
    if before.shape != after.shape or after.dtype.kind != "f" or not after.size:
        return 0.0
    return float(np.abs(after.astype(np.float64) - before).max())


def _compare_draws(one: np.ndarray, other: np.ndarray) -> tuple[float, str]:
    """Compares initial values, or the distributions from which they are drawn; above 1 they differ."""
    one, other = np.ravel(one), np.ravel(other)
    if np.array_equal(one, other):
        return 0.0, ""
    # Kolmogorov-Smirnov: two samples of one distribution differ by 1 once in 10**9 times.
    both = np.sort(np.concatenate([one, other]))
    shares = [np.searchsorted(np.sort(each), both, "right") / each.size for each in (one, other)]
    apart = np.abs(shares[0] - shares[1]).max()
    says = [f"mean {np.mean(each):.4g}, deviation {np.std(each):.4g}" for each in (one, other)]
    return float(apart / (3.28 * np.sqrt(1 / one.size + 1 / other.size))), " against ".join(says)


def first_difference(subjects: Sequence[Subject]) -> Difference | None:
    """Returns the first difference: by step, then by subject."""
    found = [subject.differences[0] for subject in subjects if subject.differences]
    in_training = [each for each in found if each.entry.step is not None]
    # The first training's come first.
    in_training.sort(key=lambda each: (int(each.entry.call.split()[1]), each.entry.step))
    return (*in_training, *found, None)[0]


def verdict_of(subjects: Sequence[Subject]) -> str:
    """Returns the worst verdict."""
    return max((each.verdict for each in subjects), key=[EQUAL, ROUNDING, DIFFERENT].index)


def find_first_op(
    original: Record, ours: Record, entry: Entry
) -> tuple[Difference | None, list[str], list[str]]:
    """Finds the first op of a step with other outputs or attributes, and the ops before it that only one side made."""
    if entry not in original.entries or entry not in ours.entries:
        return None, [], []
    (one, eps), (other, _) = original.read(entry), ours.read(entry)
    names = list(one), list(other)
    # Numbers make names unique; one more op would shift them.
    stems = [[re.sub(r"_\d+(?=/|$)", "", name) for name in each] for each in names]
    missing: list[str] = []
    added: list[str] = []
    matcher = difflib.SequenceMatcher(None, stems[0], stems[1], autojunk=False)
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        pairs = zip(names[0][start:end], names[1][new_start:new_end])
        if tag != "equal":
            missing += names[0][start:end]
            added += names[1][new_start:new_end]
            continue
        for name, new_name in pairs:
            found = measure(one[name], other[new_name], eps[name])
            if found.distance > _ROUNDING * eps[name] * found.scale:
                return Difference("op", new_name, found.says, entry), missing, added
    return None, missing, added
