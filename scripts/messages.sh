# How the scripts of this folder speak. Sourced; LOG is the file that what they run writes to.

say() { printf 'set-up: %s\n' "$*" >&2; }
fail() {
  say "$*"
  exit 1
}

# Runs a command into the log; where it fails, shows the end of the log.
logged() {
  printf '\n$ %s\n' "$*" >>"$LOG"
  "$@" </dev/null >>"$LOG" 2>&1
}
or_fail() { # DOING COMMAND...
  local doing="$1"
  shift
  logged "$@" || {
    tail -n 15 "$LOG" >&2
    fail "failed while $doing (the whole log: $LOG). Calling again starts anew."
  }
}
