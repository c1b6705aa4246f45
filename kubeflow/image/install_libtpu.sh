#!/bin/sh
# Installs the TPU's driver. Usage: APP=/app LIBTPU_PAGE=URL LIBTPU_SHA256=HASH install_libtpu.sh
# The driver that tensorflow-tpu 2.16 is pinned to, a release candidate, is on no package index but on a page of its
# own, so no lock has its hash: who builds gives it, as kubeflow/README.md says.
set -eu
echo "libtpu==2.16.0rc0 --hash=sha256:${LIBTPU_SHA256:?give it with --build-arg, see kubeflow/README.md}" > libtpu.lock
"$APP/venv/bin/python" -m pip install --no-cache-dir --no-deps --no-index --find-links "$LIBTPU_PAGE" --require-hashes \
  -r libtpu.lock
