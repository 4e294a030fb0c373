# shellcheck shell=bash disable=SC2034,SC2154
# ops/lib/server/mysql.sh: what is particular to Oracle MySQL. Sourced by ops/dev-server.

product=MySQL
server_program=mysqld
client_program=mysql
docker_image=mysql:9
docker_environment=(MYSQL_ALLOW_EMPTY_PASSWORD=1 MYSQL_ROOT_HOST=localhost)

# `/` separates alternatives: Debian has the first set, Ubuntu one of the others.
package_suite=sid
packages=(mysql-server-core mysql-client-core / mysql-server-core-8.4 mysql-client-core-8.4
  / mysql-server-core-8.0 mysql-client-core-8.0)

product_options=(--mysqlx=OFF --secure-file-priv=NULL)

is_this_product() { [[ $1 != *MariaDB* ]]; }

# Ubuntu's AppArmor profile lets an installed /usr/sbin/mysqld write to /var/lib/mysql only.
system_server_usable() {
  [ ! -e /etc/apparmor.d/usr.sbin.mysqld ] || [ -e /etc/apparmor.d/disable/usr.sbin.mysqld ] ||
    [ "$(cat /sys/module/apparmor/parameters/enabled 2>/dev/null)" != Y ]
}

share_folder() { echo "$1/share/mysql"; }

# Prepares a data directory: $@ is the server command line. Makes no anonymous accounts.
# auto.cnf holds the server's identity: each copy of the data directory must make its own.
initialise() {
  "$@" --initialize-insecure --init-file="$ops/lib/server/accounts.sql"
  rm -f "$template.tmp/data/auto.cnf"
}
