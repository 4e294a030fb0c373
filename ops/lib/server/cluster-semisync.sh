# shellcheck shell=bash disable=SC2034,SC2154
# ops/lib/server/cluster-semisync.sh: a MariaDB primary and its replica. Sourced by ops/cluster.
#
# A commit is answered once the replica has its binary log (AFTER_SYNC: and only then visible), so
# what was acknowledged is on both. A replica that is away for longer than the timeout would make it
# asynchronous again without a word; here commits wait for it instead.

kind=mariadb
nodes=(1 2)

# Only the writer waits, and only while it has a replica (follow): a replica that waited for one of
# its own would apply nothing.
node_options() {
  local semisync=ON
  [ -z "$async" ] || semisync=OFF
  options=(--server-id="$node" --log-bin=binlog --binlog-format=ROW --gtid-strict-mode=ON
    --log-slave-updates=ON --report-host=127.0.0.1
    --rpl-semi-sync-slave-enabled="$semisync" --rpl-semi-sync-master-wait-point=AFTER_SYNC
    --rpl-semi-sync-master-timeout=3600000)
}

build() {
  local number
  for number in 1 2; do
    use_node "$number"
    node_options
    [ "$number" = 1 ] || options+=(--read-only=ON)
    create_node
    launch_node
    ask "$number" "SET sql_log_bin = 0; CREATE USER repl@'127.0.0.1' IDENTIFIED BY 'repl';
      GRANT REPLICATION SLAVE ON *.* TO repl@'127.0.0.1'"
  done
  follow 2 1
}

# Makes node $1 the replica of node $2, and node $2 wait for it.
follow() {
  ask "$1" "SET GLOBAL read_only = ON;
    CHANGE MASTER TO master_host = '127.0.0.1', master_port = $(port_of "$2" 0), master_user = 'repl',
      master_password = 'repl', master_use_gtid = slave_pos, master_connect_retry = 1${3:-};
    START SLAVE"
  wait_for 60 follows "$1"
  [ -z "$async" ] || return 0
  ask "$2" "SET GLOBAL rpl_semi_sync_master_enabled = ON"
  wait_for 60 is_waited_for "$2"
}

slave_status() { (use_node "$1" && backend_sql -e "SHOW SLAVE STATUS\G"); }

follows() {
  local state
  state=$(slave_status "$1")
  if grep -q 'Slave_SQL_Running: No' <<<"$state"; then
    grep -E 'Last_(SQL_|IO_)?Error:' <<<"$state" >&2
    die "node $1 cannot follow: it has what the writer does not have; stop the cluster"
  fi
  grep -q 'Slave_IO_Running: Yes' <<<"$state" && grep -q 'Seconds_Behind_Master: 0' <<<"$state"
}

is_waited_for() { [ "$(ask "$1" "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'" | cut -f 2)" != 0 ]; }

takes_writes() { [ "$(ask "$1" "SELECT @@read_only" 2>/dev/null)" = 0 ]; }

describe() { if takes_writes "$1"; then echo primary; else echo replica; fi; }

cut_off() {
  local number
  for number in "${nodes[@]}"; do
    ! node_alive "$number" || takes_writes "$number" || ask "$number" "STOP SLAVE IO_THREAD"
  done
}

# First everything that arrived is applied: it may have been acknowledged.
promote() {
  local number
  if has_writer; then die "node $(writer) takes writes: kill it first"; fi
  for number in "${nodes[@]}"; do ! node_alive "$number" || break; done
  node_alive "$number" || die "no node is alive"
  ask "$number" "STOP SLAVE IO_THREAD"
  wait_for 60 has_applied "$number"
  # Alone it must not wait for a replica that it does not have.
  ask "$number" "STOP SLAVE; RESET SLAVE ALL; SET GLOBAL rpl_semi_sync_master_enabled = OFF;
    SET GLOBAL read_only = OFF"
}

has_applied() { [[ $(slave_status "$1") == *"Slave has read all relay log"* ]]; }

# What the former primary wrote and nobody received was never acknowledged; as a replica it takes
# that back when it recovers.
rejoin() {
  node_options
  options+=(--read-only=ON --init-rpl-role=SLAVE)
  set_options
  launch_node
  follow "$node" "$(writer)" ", master_demote_to_slave = 1"
}
