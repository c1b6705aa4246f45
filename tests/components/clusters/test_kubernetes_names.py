"""The forms of Kubernetes' names: what is taken. What is refused is in test_pods.py."""

from __future__ import annotations

import pydantic
import pytest

from tfx_tpu_trainer.components.clusters import _kubernetes_names as names


def _read(kind, text):
    return pydantic.TypeAdapter(kind).validate_python(text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (names.ObjectName, "registry.key-2"),
        (names.ObjectName, "a" * 253),
        (names.VolumeName, "a" * 63),
        (names.LabelKey, "team"),
        (names.LabelKey, "sidecar.istio.io/inject"),
        (names.LabelKey, "A_b.c-9"),
        (names.LabelValue, ""),
        (names.LabelValue, "v1.2_rc-3"),
        (names.Variable, "_HTTPS_PROXY2"),
        (names.VariableValue, "any text, ü, $(A)\n"),
        (names.SecretKey, "..tls.crt"),
        (names.MountPath, "/a b/ü"),
    ],
)
def test_what_kubernetes_takes_is_left_as_it_is(kind, text):
    assert _read(kind, text) == text


def test_a_path_has_one_form():
    assert _read(names.MountPath, "//cache//rides/./") == "/cache/rides"
