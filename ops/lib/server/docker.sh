# shellcheck shell=bash disable=SC2154
# ops/lib/server/docker.sh: a server as a container; the functions of ops/lib/server/process.sh. Sourced by
# ops/dev-server. The instance's folder holds port and options only: the data is in the container.

# The checkout is part of the container's name: two checkouts may both have a server `dev`.
container() { echo "rowmq-$kind-$name-$(cksum <<<"$checkout" | cut -d ' ' -f 1)"; }

backend_create() {
  [ -z "$disk$clock$sync_delay" ] || die "--disk, --clock and --sync-delay need the server as a process: install it, or let apt fetch it"
}

backend_alive() { [ "$(docker inspect -f '{{.State.Running}}' "$(container)" 2>/dev/null)" = true ]; }

backend_launch() {
  local options=() environment=() variable
  if ! docker inspect "$(container)" >/dev/null 2>&1; then
    mapfile -d '' -t options <"$instance/options"
    for variable in "${docker_environment[@]}"; do environment+=(-e "$variable"); done
    docker create --name "$(container)" -p "127.0.0.1:$(<"$instance/port"):3306" "${environment[@]}" \
      "$docker_image" "${common_options[@]}" "${product_options[@]}" "${options[@]}" >/dev/null
    docker cp -q "$ops/lib/server/accounts.sql" "$(container):/docker-entrypoint-initdb.d/accounts.sql"
  fi
  docker start "$(container)" >/dev/null
}

backend_freeze() { docker pause "$(container)" >/dev/null; }
backend_thaw() { docker unpause "$(container)" >/dev/null; }

backend_signal() {
  if [ "$1" = KILL ]; then docker kill "$(container)" >/dev/null 2>&1 || :
  else docker stop -t "$2" "$(container)" >/dev/null; fi
}

# Over TCP inside the container: while the image prepares the data its server has only a socket.
backend_login() {
  docker exec "$(container)" "$client_program" --protocol=TCP -h 127.0.0.1 -u queue -pqueue \
    -e 'select 1' queue >/dev/null 2>&1
}

backend_sql() {
  local terminal=()
  if [ -t 0 ] && [ -t 1 ]; then terminal=(-t); fi
  exec docker exec -i "${terminal[@]}" "$(container)" "$client_program" -u root "$@"
}

backend_log() { docker logs --tail 20 "$(container)" >&2 || :; }

backend_remove() {
  docker rm -f -v "$(container)" >/dev/null 2>&1 || :
  rm -rf "$instance"
}
