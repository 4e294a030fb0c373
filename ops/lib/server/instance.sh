# shellcheck shell=bash disable=SC2154
# ops/lib/server/instance.sh: the life of one server, whatever it runs on. Sourced by ops/dev-server.

# Runs a function while no other dev-server of this checkout does so; not to be interrupted half-way.
with_lock() { (trap '' INT TERM HUP; flock 9; "$@" 9>&-) 9>"$home/lock"; }

port_is_free() {
  ! grep -qxF "$1" "$home"/*/port 2>/dev/null && ! (exec 8<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# Below the range from which the kernel takes ports for outgoing connections.
choose_port() {
  local port
  for _ in {1..100}; do
    port=$((20000 + RANDOM % 10000))
    if port_is_free "$port"; then echo "$port"; return 0; fi
  done
  die "found no free port"
}

# Made under another name first: a half-made instance must not be taken for a whole one.
create() {
  rm -rf "$instance.tmp"
  mkdir -p "$instance.tmp"
  backend_create "$instance.tmp"
  echo "${port:-$(choose_port)}" >"$instance.tmp/port"
  echo "$source" >"$instance.tmp/source"
  : >"$instance.tmp/options"
  [ ${#rest[@]} = 0 ] || printf '%s\0' "${rest[@]}" >"$instance.tmp/options"
  mv -T "$instance.tmp" "$instance"
}

create_and_launch() {
  [ -d "$instance" ] || create
  backend_alive || backend_launch
}

# Ready means: an application can log in.
wait_ready() {
  local deadline=$((SECONDS + 120))
  until backend_login && backend_alive; do
    if ! backend_alive; then backend_log; return 1; fi
    if [ $SECONDS -ge $deadline ]; then backend_log; say "no login within 120 seconds"; return 1; fi
    sleep 0.05
  done
}

start() {
  local fresh=1
  [ ! -d "$instance" ] || fresh=
  with_lock create_and_launch
  wait_ready && return 0
  # With the data of a first start nothing is lost, and the next one may have better options.
  [ -z "$fresh" ] || stop
  die "$product $version '$name' did not start; the end of its error log is above"
}

stop() {
  [ -d "$instance" ] || return 0
  backend_signal KILL 60 # its data goes with it, so there is nothing to write back
  backend_remove
}
