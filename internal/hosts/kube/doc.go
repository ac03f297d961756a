// Package kube is a small client for the Kubernetes API server. It covers what
// Holdfast needs: nodes, pods, evictions, leases, events. It uses net/http directly
// because client-go costs 4 MB of the binary and 24 modules for its configuration
// alone; see docs/adr/kubernetes-client.md.
//
// Objects have only the fields that Holdfast reads. Writes are patches of the
// fields that Holdfast sets, so no other fields of an object are lost.
package kube
