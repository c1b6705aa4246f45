"""Packages are those of the list, by name, version and hash; docs/programs.md tells what results.json has."""

import base64
import dataclasses
import hashlib
import re
import zipfile

import pytest

from tests.programs import results
from tests.programs.fetching import PACKAGES, Package, PackageError, UnreachableError, install

PROOFS_MADE = 'made by `make test-programs ARGS="--prove --write-table"`'
WHEEL = "some_package-1.0-py3-none-any.whl"


@pytest.fixture
def index(tmp_path):
    """A folder with one wheel, which pip takes for a package index."""
    files = {
        "some_package.py": b"ANSWER = 42\n",
        "some_package-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: some-package\nVersion: 1.0\n",
        "some_package-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in files.items()
    )
    files["some_package-1.0.dist-info/RECORD"] = record.encode()
    with zipfile.ZipFile(tmp_path / WHEEL, "w") as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)
    return tmp_path


def package(index) -> Package:
    digest = hashlib.sha256((index / WHEEL).read_bytes()).hexdigest()
    return Package("some-package", "1.0", digest, "Apache-2.0", "for this test")


def options(index) -> tuple[str, ...]:
    return ("--no-index", "--find-links", str(index))


# As `make test-programs` does with each.
@pytest.mark.sweep
def test_the_file_of_the_list_is_installed(index, tmp_path):
    install(package(index), tmp_path / "site", options=options(index))
    assert (tmp_path / "site" / "some_package.py").read_text() == "ANSWER = 42\n"


def test_a_file_with_another_hash_is_refused_and_nothing_is_installed(index, tmp_path):
    other = dataclasses.replace(package(index), sha256="0" * 64)
    with pytest.raises(PackageError, match=r"some-package==1.0 is not the file .*sha256 0{64}"):
        install(other, tmp_path / "site", options=options(index))
    assert not (tmp_path / "site").exists()


@pytest.mark.sweep
def test_a_package_that_no_index_has_is_said_so(index, tmp_path):
    missing = dataclasses.replace(package(index), name="no-such-package")
    with pytest.raises(
        UnreachableError, match=r"could not get no-such-package==1\.0: a package index"
    ):
        install(missing, tmp_path / "site", options=options(index))


def test_each_package_is_pinned_once_and_by_hash():
    for requirement, listed in PACKAGES.items():
        assert requirement == f"{listed.name}=={listed.version}"
        assert re.fullmatch("[0-9a-f]{64}", listed.sha256), requirement
        assert listed.licence and listed.why
    hashes = [listed.sha256 for listed in PACKAGES.values()]
    assert len(hashes) == len(set(hashes))


ROW = results.Row("some==1.0", "some.program", "none", 0, "host", calls=("train",), passed=True)


@pytest.mark.parametrize(
    ("file", "page"), [(results.PAGE, results.page), (results.PROOFS_PAGE, results.proofs_page)]
)
def test_the_page_is_that_of_the_results(file, page):
    text = file.read_text(encoding="utf-8")
    assert page(text, results.read()) == text


def test_a_proof_is_listed_with_its_verdict_and_what_is_known():
    rows = [
        ROW,
        dataclasses.replace(ROW, program="other", proof="up to rounding, 2 ulps"),
        dataclasses.replace(
            ROW, program="other", place="2 cores", proof="different: step 3, loss", differs="draws"
        ),
    ]
    begin, end = (f"<!-- {PROOFS_MADE}: {word} -->" for word in ("begin", "end"))
    text = results.proofs_page(f"above\n{begin}old{end}\nbelow\n", rows)
    row = "| some==1.0 | other | unedited | up to rounding, 2 ulps | **different** |  | draws |"
    assert text.splitlines()[4:] == [row, end, "below"]
    assert text.startswith(f"above\n{begin}\n")


def test_each_result_is_of_a_listed_package():
    rows = results.read()
    assert {row.package for row in rows} <= set(PACKAGES)
    # Who fails has a cause; who passes was seen to do something.
    assert [row for row in rows if not row.passed and not row.cause] == []
    assert [row for row in rows if row.passed and not row.calls] == []


def test_shares_count_cases_and_edits_by_hand():
    rows = [
        ROW,
        dataclasses.replace(ROW, place="2 cores"),
        dataclasses.replace(ROW, edit="by hand", hand_edits=2),
        dataclasses.replace(
            ROW, program="other", calls=(), passed=False, cause="uses an op that is gone"
        ),
    ]
    before, after = (
        "<!-- made by `make test-programs`: begin -->",
        "<!-- made by `make test-programs`: end -->",
    )
    text = results.page(f"above\n{before}old{after}\nbelow\n", rows)
    assert text.startswith("above\n") and text.endswith("\nbelow\n") and "old" not in text
    assert "4 cases of 1 packages; 3 pass (75 %); 2 (50 %) without an edit by hand." in text
    assert "| some==1.0 | some.program | unedited | passes | passes |  | train |" in text
    assert "| some==1.0 | some.program | by hand (2) | passes |  |  | train |" in text
    assert "| some==1.0 | other | unedited | fails |  |  | uses an op that is gone |" in text
