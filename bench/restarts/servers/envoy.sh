version() { envoy --version; }
prepare() {
  echo 0 >"$DIR/epoch"
  cat >"$DIR/envoy.yaml" <<-END
	static_resources:
	  listeners:
	  - address: {socket_address: {address: $HOST, port_value: $PORT}}
	    filter_chains:
	    - filters:
	      - name: envoy.filters.network.http_connection_manager
	        typed_config:
	          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
	          stat_prefix: front
	          http_filters:
	          - name: envoy.filters.http.router
	            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
	          route_config:
	            virtual_hosts:
	            - {name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: pong}}}]}
	END
}
epoch() {
  echo "$1" >"$DIR/epoch"
  run envoy -c "$DIR/envoy.yaml" -l error --concurrency 1 --base-id "$PORT" --restart-epoch "$1" --drain-time-s 1 --parent-shutdown-time-s 2
}
start() { epoch 0; }
reload() { epoch $(($(cat "$DIR/epoch") + 1)); } # a hot restart: the old process ends after two seconds
