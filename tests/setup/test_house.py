"""Tests the counts of `make house`."""

from scripts import house


def _write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_circles_and_upward_imports_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(house, "PACKAGE", tmp_path / "package")
    monkeypatch.syspath_prepend(tmp_path)
    _write(
        tmp_path / "package",
        {
            "__init__.py": "",
            "estimator/__init__.py": "from package.estimator.tpu import b\n",
            "estimator/a.py": "from package.estimator.tpu import b\n",
            "estimator/tpu/__init__.py": "",
            # A folder and one inside of it may import each other.
            "estimator/tpu/b.py": "from package.estimator import a\nfrom package.estimator.keras.c import d\n",
            "estimator/keras/__init__.py": "",
            "estimator/keras/c.py": "from package.estimator.tpu.b import x\nd = 1\n",
            "estimator/keras/e.py": "from package.estimator.tpu.b import x\n",
            "serving/__init__.py": "",
            "serving/d.py": "from package.compat.e import f\n",
            "compat/__init__.py": "",
            "compat/e.py": "from package.estimator import a\n",
        },
    )
    assert house.circles() == {
        ("estimator.keras", "estimator.tpu"): ["estimator.tpu.b -> estimator.keras.c"]
    }
    assert house.upward() == ["serving.d -> compat.e"]


def test_no_import_of_the_package_points_upward_and_no_folders_import_each_other():
    assert house.upward() == []
    assert house.circles() == {}


def test_lines_are_counted_by_what_they_are():
    counts = house._lines(
        '"""One.\n\nTwo."""\n\nimport a\nfrom b import (\n    c,\n)\n\n# Why.\nd = c  # too\n'
    )
    assert dict(counts) == {"lines": 11, "imports": 4, "docstrings": 3, "comments": 2, "code": 5}
