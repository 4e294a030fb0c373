# shellcheck shell=bash disable=SC2034,SC2154
# ops/lib/server/hardship.sh: a server on a disk that can be filled, or is slow, with a clock that can be
# set. Sourced by ops/dev-server and ops/cluster. Below $instance: `disk` (the mounted folder of a server with
# --disk), `clock` (of one with --clock: its clock beside the true time), `clock-library`, and
# `sync-delay` and `slow-sync.so` (of one with --sync-delay).

# Puts the data directory below folder $1 on a tmpfs of its own, where a size was given: a process
# alone cannot limit itself, the server grows many files. Or into the machine's memory.
disk_mount() {
  [ -n "$disk" ] || { memory_place "$1"; return; }
  [ "$(id -u)" = 0 ] || die "--disk mounts a file system, which only root may: run it as root, or leave --disk away"
  # The folder moves with its instance; what is mounted stays where it is.
  local place
  place=$(mktemp -d)
  mount -t tmpfs -o "size=$disk" tmpfs "$place" || die "cannot mount a file system of $disk"
  if ! cp -a "$1/data/." "$place/"; then
    umount "$place"
    rmdir "$place"
    die "$disk is too small for $product's data"
  fi
  rm -rf "$1/data"
  ln -s "$place" "$1/data"
  echo "$place" >"$1/disk"
}

# A sync costs nothing in memory: the suite makes a database for each of its tests, of 40 tables
# and 20 procedures. A machine that has too little memory keeps the data on its disk.
memory_place() {
  local place free
  [ -n "$in_memory" ] || return 0
  free=$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1) || free=0
  if [ "${free:-0}" -lt $((6 << 20)) ] || ! place=$(mktemp -d /dev/shm/rowmq-server.XXXXXX 2>/dev/null); then
    say '/dev/shm has less than 6 GB free: the data stays on the disk'
    return 0
  fi
  cp -a "$1/data/." "$place/"
  rm -rf "$1/data"
  ln -s "$place" "$1/data"
  echo "$place" >"$1/memory"
}

disk_unmount() {
  if [ -e "$instance/memory" ]; then rm -rf "$(<"$instance/memory")"; fi
  [ -e "$instance/disk" ] || return 0
  umount -l "$(<"$instance/disk")"
  rmdir "$(<"$instance/disk")"
}

need_disk() { [ -e "$instance/disk" ] || die "the data of '$name' is on no disk of its own: start it with --disk SIZE, as root"; }

disk_fill() {
  need_disk
  # It ends by itself, when there is no room left.
  dd if=/dev/zero of="$(<"$instance/disk")/ballast" bs=64k status=none 2>/dev/null || :
}

disk_free() { need_disk; rm -f "$(<"$instance/disk")/ballast"; }

# Prints the path of libfaketime, which it fetches once where it is not installed.
clock_library() {
  local root=$home/bin-clock codename library
  library=$(find_clock_library /usr/lib)
  if [ -z "$library" ]; then
    if [ ! -x "$root/run" ]; then
      # Of this machine's own release, because its programs load it.
      # shellcheck source=/dev/null
      codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
      say "fetching libfaketime into ${root#"$checkout/"} (once)"
      "$ops/lib/server/unpack" "$root" "$codename" libfaketime || exit 3
    fi
    library=$(find_clock_library "$root/usr/lib")
  fi
  [ -n "$library" ] || die "libfaketime cannot be had here"
  echo "$library"
}

find_clock_library() { find "$1" -name libfaketimeMT.so.1 2>/dev/null | sed -n 1p; }

clock_enable() {
  [ -n "$clock" ] || return 0
  clock_library >"$1/clock-library"
  echo +0 >"$1/clock"
}

clock_set() {
  [ -e "$instance/clock" ] || die "the clock of '$name' cannot be set: start it with --clock"
  echo "$1" >"$instance/clock.tmp"
  mv "$instance/clock.tmp" "$instance/clock"
}

# Builds what makes every sync to disk take longer. Any machine that builds the project has a cc.
sync_delay_enable() {
  [ -n "$sync_delay" ] || return 0
  cc -shared -fPIC -O2 -o "$1/slow-sync.so" "$ops/lib/server/slow-sync.c" -ldl ||
    die "cannot build ops/lib/server/slow-sync.c: --sync-delay needs a C compiler"
  echo "$sync_delay" >"$1/sync-delay"
}

# Sets clocked: what the server's environment needs. The file is looked at once a second, and the
# monotonic clock stays true, as it does when somebody sets a machine's clock.
clock_environment() {
  clocked=()
  if [ -e "$instance/sync-delay" ]; then
    clocked=("LD_PRELOAD=$instance/slow-sync.so" "SLOW_SYNC_US=$(($(<"$instance/sync-delay") * 1000))")
  fi
  [ -e "$instance/clock" ] || return 0
  clocked=("LD_PRELOAD=$(<"$instance/clock-library")" "FAKETIME_TIMESTAMP_FILE=$instance/clock"
    FAKETIME_CACHE_DURATION=1 FAKETIME_DONT_FAKE_MONOTONIC=1)
}
