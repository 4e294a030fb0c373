# shellcheck shell=bash disable=SC2154
# ops/lib/rabbitmq.sh: starts RabbitMQ, which needs Erlang, a name for its node and a home with a
# cookie. Sourced by ops/lib/broker, whose variables and functions it uses.

# Erlang starts its own programs by their paths, so each gets a script that starts it with the
# loader of the unpacked packages. Their folder is $1.
make_erlang() {
  local erlang=usr/lib/erlang runtime program
  runtime=$(cd "$root" && echo "$erlang"/erts-*)
  mkdir -p "$1"
  for program in "$root/$runtime"/bin/{beam.smp,epmd,erl_child_setup,inet_gethost}; do
    program=${program##*/}
    printf '#!/bin/sh\nexec "%s/run" %s/bin/%s "$@"\n' "$root" "$runtime" "$program" >"$1/$program"
  done
  cat >"$1/erl" <<ERL
#!/bin/sh
export ROOTDIR="$root/$erlang" BINDIR="$1" EMU=beam PROGNAME=erl
exec "$root/run" $runtime/bin/erlexec "\$@"
ERL
  chmod +x "$1"/*
}

# Starts it in the folder $1. Its port mapper is started first: RabbitMQ would start one that stays.
launch_rabbitmq_in() {
  local mapper distribution
  mapper=$(choose_port) distribution=$(choose_port)
  make_erlang "$1/erlang"
  mkdir -p "$1/home"
  cat >"$1/rabbitmq.conf" <<CONF
listeners.tcp.1 = 127.0.0.1:$port
log.file = false
log.console = true
CONF
  : >"$1/enabled_plugins"
  # Without the monitors of the machine, which are programs that Erlang starts, too.
  local arguments='-kernel inet_dist_use_interface {127,0,0,1}' monitor
  for monitor in memsup cpu_sup disksup; do arguments+=" -os_mon start_$monitor false"; done
  local environment=(
    PATH="$1/erlang:$PATH" HOME="$1/home" LANG=C.UTF-8
    ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT="$mapper"
    RABBITMQ_NODENAME="bench-$port@localhost" RABBITMQ_NODE_PORT="$port"
    RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 RABBITMQ_DIST_PORT="$distribution"
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="$arguments" ERL_CRASH_DUMP="$1/crash"
    RABBITMQ_CONFIG_FILE="$1/rabbitmq.conf" RABBITMQ_CONF_ENV_FILE="$1/none"
    RABBITMQ_ENABLED_PLUGINS_FILE="$1/enabled_plugins"
    RABBITMQ_MNESIA_BASE="$1/data" RABBITMQ_LOG_BASE="$1/data" RABBITMQ_LOGS=-
    RABBITMQ_ALLOW_INPUT=1
  )
  launch "${environment[@]}" "$1/erlang/epmd"
  launch "${environment[@]}" "$root"/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server \
    -noinput
}
