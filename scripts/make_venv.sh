# Makes a virtual environment from hash-locked files. Sourced; needs messages.sh, ROOT, LOG, VENV, STAMP, LOCKS
# and PYTHON.

# uv does not read pip's configuration; a mirror set there would otherwise be passed by.
use_index_of_pip() {
  local index
  [[ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]] || return 0
  index="${PIP_INDEX_URL:-$("$VENV/bin/python" -m pip config get global.index-url 2>/dev/null || true)}"
  [[ -z "$index" ]] || export UV_DEFAULT_INDEX="$index"
}

# An empty one, with the installers in it. Arguments are venv's own.
make_empty_venv() { # ARGUMENT...
  rm -f "$STAMP"
  rm -rf "$VENV"
  or_fail "making a virtual environment" "$PYTHON" -m venv "$@" "$VENV"
  or_fail "installing requirements/bootstrap.lock" \
    "$VENV/bin/python" -m pip install --require-hashes -r "$ROOT/requirements/bootstrap.lock"
}

# Builds use what bootstrap.lock installed (no isolation), so nothing without a hash gets in.
install_dev_lock() {
  local lock="$LOCKS/dev.lock"
  use_index_of_pip
  say "installing $(grep -c '==' "$lock") packages (3 GB; progress: tail -f $LOG)"
  logged "$VENV/bin/uv" pip install --python "$VENV/bin/python" --require-hashes --no-deps \
    --no-build-isolation --compile-bytecode -r "$lock" && return
  say "uv could not install the lock; trying pip, which knows of pip.conf's mirrors and certificates"
  or_fail "installing ${lock#"$ROOT/"}" "$VENV/bin/python" -m pip install --require-hashes --no-deps \
    --no-build-isolation -r "$lock"
}

install_this_package() {
  or_fail "installing this package" "$VENV/bin/python" -m pip install --no-deps --no-build-isolation --editable "$ROOT"
  or_fail "importing this package" "$VENV/bin/python" -I -c "import tfx_tpu_trainer"
}
