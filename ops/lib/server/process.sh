# shellcheck shell=bash disable=SC2154
# ops/lib/server/process.sh: a server as a process of this machine. Sourced by ops/dev-server.
# An instance is the folder $instance: data/, tmp/, error.log and the files port, socket, options, pid.

# The options that make the server run from its own folder only, for the data directory in folder $1.
place_options() {
  local share
  share=$(share_folder "$prefix")
  place=(--no-defaults --datadir="$1/data" --tmpdir="$1/tmp")
  # An installed server knows its own places; an unpacked one has to be told.
  [ "$source" = system ] || place+=(--basedir="$prefix" --plugin-dir="$prefix/lib/mysql/plugin"
    --lc-messages-dir="$share" --character-sets-dir="$share/charsets")
  # Run by root, the server refuses to stay root unless told so.
  [ "$(id -u)" != 0 ] || place+=(--user=root)
}

# An initialised data directory, made once per server version and copied for each instance.
make_template() {
  template=$home/template-$kind-$version
  if [ -d "$template" ] && [ "$template" -nt "$ops/lib/server/accounts.sql" ]; then return 0; fi
  rm -rf "$template.tmp" "$template"
  mkdir -p "$template.tmp/tmp"
  [ "$kind" = mysql ] || mkdir "$template.tmp/data" # mysqld insists on making it
  place_options "$template.tmp"
  if ! initialise "${server[@]}" "${place[@]}" >"$template.tmp/init.log" 2>&1; then
    tail -n 20 "$template.tmp/init.log" >&2
    die "$product $version could not make a data directory"
  fi
  rm "$template.tmp/init.log"
  touch "$template.tmp"
  mv -T "$template.tmp" "$template"
}

backend_create() {
  make_template
  cp -a --reflink=auto "$template/." "$1/"
  disk_mount "$1"
  clock_enable "$1"
  sync_delay_enable "$1"
  # A socket's path may have no more than 107 bytes.
  local socket=$instance/socket.sock
  if [ ${#socket} -gt 100 ]; then socket=$(mktemp -d)/socket.sock; fi
  echo "$socket" >"$1/socket"
}

# Prints the process id of the running server. The pid file alone is no proof: ids are used again.
# A bare `return` would fail in a trap after a command that failed, and the server would be left.
server_pid() {
  local pid words tries
  pid=$(cat "$instance/pid" 2>/dev/null) || return 1
  # In the middle of becoming another program a process has no command line for a moment: beside a
  # release build that was more than 50 ms once. One that ends has none either, until the last of its
  # threads has closed what it had open. It is read once a round: a second look may find the words
  # that the first one missed, and they would be taken for another program's.
  for ((tries = 0; tries < 200; tries++)); do
    words=$(tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline") || :
    if grep -qxF -- "--datadir=$instance/data" <<<"$words"; then
      echo "$pid"
      return 0
    fi
    if [ -n "$words" ] || ! kill -0 "$pid" 2>/dev/null; then break; fi
    if grep -q '^State:[[:space:]]*Z' "/proc/$pid/status" 2>/dev/null &&
      grep -qx 'Threads:[[:space:]]*1' "/proc/$pid/status" 2>/dev/null; then break; fi
    sleep 0.01
  done
  return 1
}

backend_alive() { server_pid >/dev/null; }

# In a session of its own, so that neither Ctrl-C nor a closed terminal reaches the server.
backend_launch() {
  local socket options=() limit
  socket=$(<"$instance/socket")
  mapfile -d '' -t options <"$instance/options"
  place_options "$instance"
  mkdir -p "$(dirname "$socket")"
  rm -f "$socket" "$socket.lock" "$instance/server.pid"
  limit=$(ulimit -Hn)
  if [ "$limit" = unlimited ] || [ "$limit" -gt 65536 ]; then limit=65536; fi
  ulimit -Sn "$limit" # for 500 connections; the usual 1024 is not enough
  clock_environment
  setsid env --default-signal "${clocked[@]}" "${server[@]}" "${place[@]}" --socket="$socket" \
    --pid-file="$instance/server.pid" --log-error="$instance/error.log" \
    --bind-address=127.0.0.1 --port="$(<"$instance/port")" \
    "${common_options[@]}" "${product_options[@]}" "${options[@]}" \
    </dev/null >>"$instance/error.log" 2>&1 &
  echo $! >"$instance/pid"
  # The id only counts once setsid and env have become the server, which takes seconds where
  # everything waits for a processor.
  local tries
  for ((tries = 0; tries < 1000; tries++)); do
    if backend_alive || ! kill -0 $! 2>/dev/null; then return 0; fi
    sleep 0.01
  done
}

backend_freeze() { kill -STOP "$(server_pid)"; }
backend_thaw() { kill -CONT "$(server_pid)"; }

# Sends signal $1 and waits for the server to be gone, up to $2 seconds.
backend_signal() {
  local pid tries
  pid=$(server_pid) || return 0
  kill -s "$1" "$pid" 2>/dev/null || return 0
  for ((tries = 0; tries < $2 * 50; tries++)); do
    backend_alive || return 0
    sleep 0.02
  done
  die "the server (process $pid) did not end within $2 seconds of SIG$1"
}

backend_login() {
  [ -S "$(<"$instance/socket")" ] &&
    "${client[@]}" --no-defaults --protocol=TCP -h 127.0.0.1 -P "$(<"$instance/port")" \
      -u queue -pqueue -e 'select 1' queue >/dev/null 2>&1
}

backend_sql() { exec "${client[@]}" --no-defaults -S "$(<"$instance/socket")" -u root "$@"; }

backend_log() { tail -n 20 "$instance/error.log" >&2 || :; }

backend_remove() {
  local socket
  socket=$(<"$instance/socket")
  disk_unmount
  rm -rf "$instance"
  if [[ $socket != "$instance"/* ]]; then rm -rf "$(dirname "$socket")"; fi
}
