# shellcheck shell=bash disable=SC2034,SC2154
# ops/lib/server/cluster-galera.sh: three nodes of Galera. Its timeouts are Galera's defaults. Sourced by
# ops/cluster.
#
# No node ever needs a copy of another's data, which would take rsync and the rights of its user: the
# first one's data is copied while it is down, and a node that was killed finds in its own data how
# far it came and gets the rest from the others' caches.

kind=galera
nodes=(1 2 3)
export PATH=$ops/lib/server:$PATH # for wsrep_sst_files

node_options() {
  local number peers=()
  for number in "${nodes[@]}"; do peers+=("127.0.0.1:$(port_of "$number" 1)"); done
  options=(--server-id="$node" --binlog-format=ROW --innodb-autoinc-lock-mode=2
    --wsrep-on=ON --wsrep-provider="$prefix/lib/galera/libgalera_smm.so" --wsrep-cluster-name=queue
    --wsrep-cluster-address="gcomm://$(IFS=,; echo "${peers[*]}")" --wsrep-node-name="node$node"
    --wsrep-node-address="127.0.0.1:$(port_of "$node" 1)" --wsrep-slave-threads=2
    --wsrep-sst-method=files
    --wsrep-provider-options="base_host=127.0.0.1;base_port=$(port_of "$node" 1);gmcast.listen_addr=tcp://127.0.0.1:$(port_of "$node" 1);ist.recv_addr=127.0.0.1:$(port_of "$node" 2);gcache.size=512M")
}

build() {
  use_node 1
  node_options
  options+=(--wsrep-new-cluster)
  create_node
  launch_node
  backend_signal TERM 60
  local first=$instance number
  for number in 2 3; do
    use_node "$number"
    node_options
    create_node
    rm -rf "$instance/data"
    cp -a --reflink=auto "$first/data" "$instance/data"
    rm -f "$instance/data/galera.cache" "$instance/data/gvwstate.dat"
    sed -i 's/^safe_to_bootstrap:.*/safe_to_bootstrap: 0/' "$instance/data/grastate.dat"
  done
  for number in "${nodes[@]}"; do
    use_node "$number"
    launch_node
    wait_for 60 is_synced "$number"
    node_options
    set_options # from now on none of them begins a cluster
  done
  ask 1 "CREATE DATABASE cluster_probe; CREATE TABLE cluster_probe.probe (id INT PRIMARY KEY, n DOUBLE)"
}

status_of() { ask "$1" "SHOW STATUS LIKE '$2'" 2>/dev/null | cut -f 2; }

describe() { echo "$(status_of "$1" wsrep_local_state_comment), $(status_of "$1" wsrep_cluster_status)"; }

is_synced() { [ "$(describe "$1")" = "Synced, Primary" ]; }

# A node answers as synced until the dead one is expelled; before that no commit ends.
takes_writes() {
  is_synced "$1" && [ "$(status_of "$1" wsrep_ready)" = ON ] &&
    ask "$1" "REPLACE INTO cluster_probe.probe VALUES (1, RAND())" 2>/dev/null
}

promote() { :; }

rejoin() {
  local position
  place_options "$instance"
  node_options
  "${server[@]}" "${place[@]}" "${common_options[@]}" "${options[@]}" --wsrep-recover \
    --skip-networking --socket="$instance/recovery.sock" --log-error="$instance/recovery.log" >/dev/null 2>&1 || die "node $node has no position; see $instance/recovery.log"
  position=$(sed -n 's/.*Recovered position: *//p' "$instance/recovery.log" | tail -n 1)
  [ -n "$position" ] || die "node $node has no position; see $instance/recovery.log"
  options+=(--wsrep-start-position="$position")
  set_options
  launch_node
  wait_for 120 is_synced "$node"
  node_options
  set_options
}
