// Package deploy tests what people load into other programs to watch Holdfast: the
// alert rules for Prometheus and the dashboard for Grafana. Every query is parsed by
// promtool, and asks for metrics, labels and values that docs/metrics.md has, which
// is held to what an agent registers.
package deploy
