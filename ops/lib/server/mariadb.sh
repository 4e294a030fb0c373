# shellcheck shell=bash disable=SC2034,SC2154
# ops/lib/server/mariadb.sh: what is particular to MariaDB. Sourced by ops/dev-server.

product=MariaDB
server_program=mariadbd
client_program=mariadb
docker_image=mariadb:11.8
docker_environment=(MARIADB_ALLOW_EMPTY_ROOT_PASSWORD=1 MARIADB_ROOT_HOST=localhost)

# `/` separates alternatives: the second set is for Ubuntu 22.04.
package_suite=trixie
packages=(mariadb-server-core mariadb-client-core / mariadb-server-core-10.6 mariadb-client-core-10.6)

# Without this, every connection that a test drops is a line in the log.
product_options=(--log-warnings=1)

is_this_product() { [[ $1 == *MariaDB* ]]; }

system_server_usable() { :; }

# The folder with the server's messages and its start-up SQL, below installation prefix $1.
share_folder() {
  local folder
  for folder in "$1"/share/mariadb "$1"/share/mysql "$1"/share; do
    if [ -e "$folder/fill_help_tables.sql" ]; then echo "$folder"; return 0; fi
  done
  die "no fill_help_tables.sql below $1/share: the MariaDB installation is not complete"
}

# What the stock mariadb-install-db does, in one server run and without its anonymous accounts.
initialise() {
  local share
  share=$(share_folder "$prefix")
  {
    printf 'create database mysql;\nuse mysql;\nset @auth_root_socket=NULL;\n'
    cat "$share"/*_system_tables.sql "$share"/*_performance_tables.sql \
      "$share"/*_system_tables_data.sql "$share"/fill_help_tables.sql \
      "$share"/maria_add_gis_sp_bootstrap.sql "$share"/*_sys_schema.sql
    echo 'flush privileges;'
    cat "$ops/lib/server/accounts.sql"
  } | "$@" --bootstrap --log-warnings=0 --enforce-storage-engine= --max-allowed-packet=8M
}
