// Package kube speaks with a Kubernetes API server, in the few words that Holdfast
// needs: nodes, pods, evictions, leases, events. It is a client of its own on net/http
// because client-go costs 4 MB of the binary and 24 modules for its configuration
// alone; see docs/adr/kubernetes-client.md.
//
// Objects have the fields that we read. What is written is a patch of the fields that
// we mean, so nothing that others keep in an object is lost.
package kube
