# How the scripts of this folder speak. Sourced; LOG is the file that what they run writes to.

say() { printf 'set-up: %s\n' "$*" >&2; }
fail() {
  say "$*"
  exit 1
}
# Where nothing is wrong with the checkout: this machine lacks something.
LACKING=3
lack() {
  say "$*"
  exit "$LACKING"
}

# Runs a command into the log; where it fails, shows the end of the log.
logged() {
  printf '\n$ %s\n' "$*" >>"$LOG"
  "$@" </dev/null >>"$LOG" 2>&1
}
or_fail() { or_end fail "$@"; } # DOING COMMAND...
or_lack() { or_end lack "$@"; }
or_end() { # END DOING COMMAND...
  local end="$1" doing="$2"
  shift 2
  logged "$@" || {
    tail -n 15 "$LOG" >&2
    "$end" "failed while $doing (the whole log: $LOG). Calling again starts anew."
  }
}
