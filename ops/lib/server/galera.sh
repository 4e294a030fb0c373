# shellcheck shell=bash disable=SC2034,SC2154
# ops/lib/server/galera.sh: MariaDB with the Galera library beside it, in a root of their own. Sourced by
# ops/cluster.

# shellcheck source-path=SCRIPTDIR source=mariadb.sh
. "$ops/lib/server/mariadb.sh"
packages=(mariadb-server-core mariadb-client-core galera-4)
DEV_SERVER_SOURCE=packages
