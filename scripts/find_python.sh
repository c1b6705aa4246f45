# Which Pythons this machine has. Sourced; needs messages.sh, ROOT, STATE, LOG and NETWORK_PATIENCE.

# What list_pythons found, one a line: "3.12 /usr/bin/python3.12", or "3.12 lacks module ensurepip" where it cannot
# make a virtual environment that packages are built in.
PYTHONS=""

# Asks a candidate by running it: a pyenv shim is on PATH even where the version behind it is not chosen.
# Gives the real interpreter, not that of a virtual environment, nor a shim.
ask_python() {
  "$1" -I - <<'PYTHON' 2>/dev/null
import os, sys, sysconfig

lacks = []
for module in ("venv", "ensurepip", "ssl", "zlib", "ctypes"):
    try:
        __import__(module)
    except ImportError:
        lacks.append("module " + module)
if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
    lacks.append("Python.h")
interpreter = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
print("%d.%d " % sys.version_info[:2] + ("lacks " + ", ".join(lacks) if lacks else interpreter))
PYTHON
}

candidates() {
  local version
  for version in 3.{10,11,12,13}; do type -aP "python$version" || true; done
  type -aP python3 python || true
  # pyenv's versions that no shim chooses, newest first.
  compgen -G "${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}/versions/3.*/bin/python" | sort -rV || true
  if type -P uv >/dev/null; then
    for version in 3.{10,11,12,13}; do
      uv python find --system --no-project --no-python-downloads "$version" 2>/dev/null || true
    done
  fi
  compgen -G "$STATE/python/*/bin/python3.1[0-3]" || true # downloaded by an earlier call
}

list_pythons() {
  local candidate answer
  PYTHONS=""
  while IFS= read -r candidate; do
    answer="$(ask_python "$candidate")" || continue
    [[ "$answer" == 3.* ]] || continue
    case $'\n'"$PYTHONS" in
      *$'\n'"$answer"$'\n'*) ;;
      *) PYTHONS+="$answer"$'\n' ;;
    esac
  done < <(candidates)
}

# Sets PYTHON and VERSION to the first usable Python of the versions given.
choose_python() { # VERSION...
  local version found interpreter
  for version in "$@"; do
    while read -r found interpreter; do
      if [[ "$found" == "$version" && "$interpreter" == /* ]]; then
        VERSION="$version"
        PYTHON="$interpreter"
        return 0
      fi
    done <<<"$PYTHONS"
  done
  return 1
}

# Says what the first Python of the versions given lacks, where there is one that cannot be used.
incomplete_python() { # VERSION...
  local version found lacks
  for version in "$@"; do
    while read -r found lacks; do
      if [[ "$found" == "$version" && "$lacks" == lacks* ]]; then
        echo "Python $version $lacks: install python$version-venv and python$version-dev (apt-get), or 'pyenv install $version'"
        return 0
      fi
    done <<<"$PYTHONS"
  done
  return 1
}

# "Python 3.8, 3.11" or "no Python 3".
pythons_here() {
  local found rest all=""
  while read -r found rest; do
    [[ -z "$found" || ", $all, " == *", $found, "* ]] || all+="${all:+, }$found"
  done <<<"$PYTHONS"
  echo "${all:+Python }${all:-no Python 3}"
}

# Installs uv into a folder of our own, with any Python 3 that is there.
install_uv() {
  local any_python
  rm -rf "$STATE/uv"
  while IFS= read -r any_python; do
    logged "$any_python" -I -m venv "$STATE/uv" && break
  done < <(type -aP python3)
  [[ -x "$STATE/uv/bin/python" ]] &&
    logged env PIP_RETRIES=0 PIP_DEFAULT_TIMEOUT="$NETWORK_PATIENCE" \
      "$STATE/uv/bin/python" -m pip install --require-hashes -r "$ROOT/requirements/bootstrap.lock"
}

# Downloads a Python into a folder of our own.
download_python() { # VERSION
  local uv
  say "no usable Python $1 on PATH or in pyenv; trying to download one with uv"
  if ! uv="$(type -P uv)"; then
    install_uv || return 1
    uv="$STATE/uv/bin/uv"
  fi
  logged env UV_PYTHON_INSTALL_DIR="$STATE/python" UV_PYTHON_INSTALL_BIN=0 \
    UV_HTTP_TIMEOUT="$NETWORK_PATIENCE" UV_HTTP_CONNECT_TIMEOUT="$NETWORK_PATIENCE" UV_HTTP_RETRIES=0 \
    "$uv" python install "$1" || return 1
  list_pythons
}
