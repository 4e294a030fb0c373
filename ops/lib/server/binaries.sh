# shellcheck shell=bash disable=SC2034,SC2154
# ops/lib/server/binaries.sh: finds or fetches the server. Sourced by ops/dev-server.
#
# find_server sets
#   source          system | packages | docker
#   server, client  the commands (arrays; not for docker)
#   prefix          the installation's prefix, where share/ is (not for docker)
#   version         like 11.8.6
# DEV_SERVER_SOURCE=system|packages|docker allows only that source (to test this file).

find_server() {
  source=
  if allowed system && use_system; then source=system
  elif allowed packages && use_packages; then source=packages
  elif allowed docker && use_docker; then source=docker
  else
    echo "dev-server: cannot get $product here: install a package with $server_program and $client_program, or start Docker." >&2
    exit 3
  fi
}

allowed() { [ -z "${DEV_SERVER_SOURCE:-}" ] || [ "$DEV_SERVER_SOURCE" = "$1" ]; }

# Takes the version from `mysqld --version`: "... Ver 11.8.6-MariaDB-0+deb13u1 from Debian for ...".
set_version() {
  [[ $1 =~ Ver\ ([0-9]+\.[0-9]+\.[0-9]+) ]] && is_this_product "$1" && version=${BASH_REMATCH[1]}
}

use_system() {
  local path=$PATH:/usr/sbin:/usr/local/sbin server_path client_path
  server_path=$(PATH=$path type -P "$server_program") || return 1
  client_path=$(PATH=$path type -P "$client_program") || return 1
  set_version "$("$server_path" --version 2>/dev/null)" || return 1
  if ! system_server_usable; then
    say "$server_path may not run from a data directory of ours here; looking further"
    return 1
  fi
  server=("$server_path") client=("$client_path")
  prefix=$(dirname "$(dirname "$(readlink -f "$server_path")")")
}

use_packages() {
  local root=$home/bin-$kind
  if [ ! -x "$root/run" ]; then
    say "fetching $product packages into ${root#"$checkout/"} (once)"
    "$ops/lib/server/unpack" "$root" "$package_suite" "${packages[@]}" || return 1
  fi
  server=("$root/run" "usr/sbin/$server_program") client=("$root/run" "usr/bin/$client_program")
  prefix=$root/usr
  set_version "$("${server[@]}" --version)"
}

use_docker() {
  docker info >/dev/null 2>&1 || return 1
  docker image inspect "$docker_image" >/dev/null 2>&1 || docker pull -q "$docker_image" >&2 || return 1
  set_version "$(docker run --rm --entrypoint "$server_program" "$docker_image" --version)"
}
