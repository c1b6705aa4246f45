"""`python -m benchmarks.published_tpus`: shows published speeds next to the preflight's bound and estimate.

python -m benchmarks.published_tpus            # what was recorded, as a table; seconds
python -m benchmarks.published_tpus --record   # compiles the programs again; some minutes
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

from benchmarks.published_tpus.comparison import compare_all, read, spread, table, write


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.published_tpus")
    parser.add_argument("--record", action="store_true", help="Compile, and write the record.")
    if parser.parse_args().record:
        write(compare_all())
    rows = read()
    print(table(rows))
    print(f"\nErrors on {spread(rows)}.")


if __name__ == "__main__":
    main()
