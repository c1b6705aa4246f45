#!/bin/sh
# Makes $APP/venv and installs what a lock file pins, with hashes. Usage: APP=/app install_locked.sh LOCK
# The working directory has requirements/bootstrap.lock.
set -eu
lock=$1
python=$APP/venv/bin/python
# Compiling 15,000 modules may stand still for longer than uv's minute where others use the machine too.
export UV_COMPILE_BYTECODE_TIMEOUT=600
python -m venv "$APP/venv"
"$python" -m pip install --no-cache-dir --require-hashes -r requirements/bootstrap.lock
# No isolation: builds use what bootstrap.lock installed, so nothing without a hash gets in.
"$APP/venv/bin/uv" pip install --python "$python" --require-hashes --no-deps --no-build-isolation --compile-bytecode \
  -r "$lock"
