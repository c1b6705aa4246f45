# Which line of TFX this machine gets: docs/lines.md says what a line is. Sourced; needs messages.sh and find_python.sh.

# The Pythons of each line, the one that it was tested on most first.
PYTHONS_OF_1_16=(3.10)
PYTHONS_OF_1_21=(3.12 3.13 3.11)
# What the wheels of each line were built for; of the older one it is the TPU compiler's that asks for most.
GLIBC_OF_1_16=2.31
GLIBC_OF_1_21=2.39

# "2.36"; nothing where the C library is another.
glibc_version() {
  local answer
  answer="$(getconf GNU_LIBC_VERSION 2>/dev/null)" || return 0
  echo "${answer#glibc }"
}

# Both are like 2.36.
is_at_least() { # VERSION LEAST
  local minor="${1#*.}"
  ((${1%%.*} > ${2%%.*} || (${1%%.*} == ${2%%.*} && ${minor%%[!0-9]*} >= ${2#*.})))
}

# The lock files of a line.
locks_of() { # LINE
  case "$1" in
    1.16) echo "$ROOT/requirements" ;;
    1.21) echo "$ROOT/requirements/tfx-1.21" ;;
  esac
}

check_asked_line() { # LINE
  case "$1" in
    "" | 1.16 | 1.21) ;;
    *) fail "LINE=$1 is neither 1.16 nor 1.21: give one of them, or leave LINE out to have one picked." ;;
  esac
}

one_of() { # VERSION...
  local all="$1"
  shift
  while (($# > 1)); do
    all+=", $1"
    shift
  done
  echo "$all${1:+ or $1}"
}

# Sets PYTHON and VERSION to one of the versions given: one that is here, else the first of them, downloaded.
need_python() { # GLIBC VERSION...
  local glibc="$1" incomplete
  shift
  choose_python "$@" && return
  download_python "$1" && choose_python "$1" && return
  incomplete="$(incomplete_python "$@")" && lack "$incomplete; then call again."
  lack "here: $(pythons_here), glibc $glibc; needed: Python $(one_of "${PYTHONS_OF_1_16[@]}") (TFX 1.16), or Python $(one_of "${PYTHONS_OF_1_21[@]}") and glibc $GLIBC_OF_1_21 (TFX 1.21). Python $1 cannot be downloaded: install it ('apt-get install python$1-venv python$1-dev', 'pyenv install $1' or 'uv python install $1'), then call again."
}

# Sets LINE, PYTHON, VERSION and WHY.
pick_line() { # ASKED GLIBC
  local asked="$1" glibc="$2"
  if ! is_at_least "$glibc" "$GLIBC_OF_1_16"; then
    fail "here: glibc $glibc; needed: glibc $GLIBC_OF_1_16 or newer (TFX 1.16), or $GLIBC_OF_1_21 or newer (TFX 1.21): use a machine or container with Debian 12, Ubuntu 22.04 or newer."
  fi
  if [[ "$asked" == 1.21 ]] && ! is_at_least "$glibc" "$GLIBC_OF_1_21"; then
    fail "LINE=1.21 needs glibc $GLIBC_OF_1_21 or newer, and $glibc is here: take LINE=1.16, or a machine or container with Debian 13 or Ubuntu 24.04; 'make test-latest' runs the tests on it here, with a glibc of its own."
  fi

  list_pythons
  LINE="$asked"
  WHY="LINE=$asked"
  if [[ -z "$asked" ]]; then
    pick_by_itself "$glibc"
  fi
  case "$LINE" in
    1.16) need_python "$glibc" "${PYTHONS_OF_1_16[@]}" ;;
    1.21) need_python "$glibc" "${PYTHONS_OF_1_21[@]}" ;;
  esac
}

# Sets LINE and WHY.
pick_by_itself() { # GLIBC
  if ! is_at_least "$1" "$GLIBC_OF_1_21"; then
    LINE=1.16
    WHY="glibc $1 is here, TFX 1.21 needs $GLIBC_OF_1_21"
  elif choose_python "${PYTHONS_OF_1_21[@]}"; then
    LINE=1.21
    WHY="glibc $1 and Python $VERSION are here; LINE=1.16 takes the older line"
  elif choose_python "${PYTHONS_OF_1_16[@]}"; then
    LINE=1.16
    WHY="$(incomplete_python "${PYTHONS_OF_1_21[@]}" || echo "there is no Python $(one_of "${PYTHONS_OF_1_21[@]}")")"
  else
    LINE=1.21
    WHY="glibc $1 is here"
  fi
}
