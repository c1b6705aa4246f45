"""`make dist`: what a wheel must hold is told from the checkout. The wheel itself: test_light_install.py."""

from __future__ import annotations

import pytest

import tfx_tpu_trainer
from scripts.build_dist import missing_or_foreign

INFO = f"tfx_tpu_trainer-{tfx_tpu_trainer.__version__}.dist-info/METADATA"
FILES = (
    "tfx_tpu_trainer/__init__.py",
    "tfx_tpu_trainer/py.typed",
    "tfx_tpu_trainer/components/report/templates/page.html.j2",
    "tfx_tpu_trainer/workbench/new/templates/project/Makefile",
)


@pytest.fixture
def checkout(tmp_path):
    for name in (*FILES, "tfx_tpu_trainer/__pycache__/it.pyc", "tests/test_it.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return tmp_path


def test_a_whole_wheel_has_no_faults(checkout):
    assert list(missing_or_foreign([*FILES, INFO], checkout)) == []


@pytest.mark.parametrize("left_out", FILES)
def test_what_a_wheel_lacks_is_named(checkout, left_out):
    held = [name for name in (*FILES, INFO) if name != left_out]
    assert list(missing_or_foreign(held, checkout)) == [f"the wheel lacks {left_out}"]


def test_what_is_beside_the_package_is_named(checkout):
    (fault,) = missing_or_foreign([*FILES, INFO, "tests/test_it.py"], checkout)
    assert fault.startswith("the wheel has tests/test_it.py")
