"""A file in place of the one that the Estimator guide downloads."""

import csv
import pathlib
import random

COLUMNS = (
    "survived",
    "sex",
    "age",
    "n_siblings_spouses",
    "parch",
    "fare",
    "class",
    "deck",
    "embark_town",
    "alone",
)
ROWS = 627
# Women and children, first class before third: how likely each survives.
_SURVIVAL = {"First": 0.63, "Second": 0.47, "Third": 0.22}


def titanic_csv(path: str) -> str:
    """Writes passengers like those of Titanic's train.csv: its columns, spellings, number of rows.

    Args:
        path: The file's path; an existing file is kept.

    Returns:
        The path.
    """
    if not pathlib.Path(path).exists():
        source = random.Random(1912)
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(_passenger(source) for _ in range(ROWS))
    return path


def _passenger(source: random.Random) -> list[object]:
    sex = source.choices(["male", "female"], [65, 35])[0]
    cabin_class = source.choices(list(_SURVIVAL), [24, 21, 55])[0]
    age = float(min(max(round(source.gauss(29, 13)), 1), 80))
    likely = _SURVIVAL[cabin_class] + (0.25 if sex == "female" else -0.15) + 0.3 * (age < 10)
    siblings, parents = (source.choices([0, 1, 2], [68, 22, 10])[0] for _ in range(2))
    fares = {"First": 84.0, "Second": 20.0, "Third": 13.0}
    return [
        int(source.random() < likely),
        sex,
        age,
        siblings,
        parents,
        round(fares[cabin_class] * source.uniform(0.5, 1.5), 4),
        cabin_class,
        source.choice("ABCDE") if cabin_class == "First" else "unknown",
        source.choices(["Southampton", "Cherbourg", "Queenstown"], [72, 19, 9])[0],
        "n" if siblings + parents else "y",
    ]
