// Package deploy tests the alert rules for Prometheus and the dashboard for Grafana. promtool
// parses every query. All metrics, labels and values of queries are in docs/metrics.md, which
// another test compares with the metrics of an agent.
package deploy
