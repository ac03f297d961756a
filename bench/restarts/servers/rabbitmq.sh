export HOME=$DIR HOSTNAME=localhost
export RABBITMQ_NODENAME=holdfast@localhost RABBITMQ_NODE_IP_ADDRESS=$HOST RABBITMQ_NODE_PORT=$PORT RABBITMQ_DIST_PORT=$((PORT + 1)) RABBITMQ_MNESIA_BASE=$DIR \
  RABBITMQ_LOG_BASE=$DIR RABBITMQ_CONFIG_FILE=$DIR/none RABBITMQ_ADVANCED_CONFIG_FILE=$DIR/none.config RABBITMQ_ENABLED_PLUGINS_FILE=$DIR/plugins \
  RABBITMQ_CONF_ENV_FILE=$DIR/env RABBITMQ_GENERATED_CONFIG_DIR=$DIR RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='+S 2:2 +sbwt none'
version() { echo "RabbitMQ $(dpkg-query -W -f='${Version}' rabbitmq-server)"; }
prepare() {
  echo '[].' >"$DIR/plugins"
  : >"$DIR/env"
  start
  until_it amqp-declare-queue -u "amqp://$HOST:$PORT" -q q
  stop
}
start() { run /usr/lib/rabbitmq/bin/rabbitmq-server; }
# Each message has a connection of its own.
once() {
  worker & worker &
  worker
  wait
}
worker() {
  local begin end=$((SECONDS + RUN)) how
  while ((SECONDS < end)); do
    begin=$EPOCHREALTIME how=ok
    amqp-publish -u "amqp://$HOST:$PORT" -r q -b hello || { how=failed && sleep 0.05; }
    echo "$how $(((${EPOCHREALTIME/./} - ${begin/./}) / 1000))"
  done
}
tally() {
  awk '$1 == "failed" { e++ } $1 == "ok" { n++; if ($2 > max) max = $2 } END { print n + 0, e + 0, max + 0 }' "$DIR/load.out"
}
