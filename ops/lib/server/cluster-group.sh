# shellcheck shell=bash disable=SC2034,SC2154
# ops/lib/server/cluster-group.sh: MySQL Group Replication with three members and one primary, which the
# group elects anew by itself. Its timeouts are MySQL's defaults. Sourced by ops/cluster.

kind=mysql
nodes=(1 2 3)

node_options() {
  local number seeds=()
  for number in "${nodes[@]}"; do seeds+=("127.0.0.1:$(port_of "$number" 1)"); done
  options=(--server-id="$node" --gtid-mode=ON --enforce-gtid-consistency=ON --report-host=127.0.0.1
    --plugin-load-add=group_replication.so --loose-group-replication-start-on-boot=OFF
    --loose-group-replication-group-name=6f1f6c1e-0d6a-4a52-9d5c-5c1f3f0c9a01
    --loose-group-replication-local-address="127.0.0.1:$(port_of "$node" 1)"
    --loose-group-replication-group-seeds="$(IFS=,; echo "${seeds[*]}")"
    --loose-group-replication-recovery-get-public-key=ON)
}

build() {
  local number
  for number in "${nodes[@]}"; do
    use_node "$number"
    node_options
    create_node
    launch_node
    ask "$number" "SET sql_log_bin = 0; CREATE USER repl@'127.0.0.1' IDENTIFIED BY 'repl';
      GRANT REPLICATION SLAVE, CONNECTION_ADMIN, BACKUP_ADMIN, GROUP_REPLICATION_STREAM
      ON *.* TO repl@'127.0.0.1'"
    if [ "$number" = 1 ]; then ask 1 "SET GLOBAL group_replication_bootstrap_group = ON"; fi
    join
    if [ "$number" = 1 ]; then ask 1 "SET GLOBAL group_replication_bootstrap_group = OFF"; fi
  done
}

join() {
  ask "$node" "START GROUP_REPLICATION USER = 'repl', PASSWORD = 'repl'"
  wait_for 120 is_online "$node"
}

# Its own state and role in the group, such as ONLINE PRIMARY.
describe() {
  ask "$1" "SELECT CONCAT(member_state, ' ', member_role)
    FROM performance_schema.replication_group_members WHERE member_id = @@server_uuid"
}

is_online() { [[ $(describe "$1" 2>/dev/null) == ONLINE* ]]; }

takes_writes() {
  [ "$(describe "$1" 2>/dev/null)" = "ONLINE PRIMARY" ] &&
    [ "$(ask "$1" "SELECT @@super_read_only" 2>/dev/null)" = 0 ]
}

promote() { :; }

rejoin() {
  launch_node
  join
}
