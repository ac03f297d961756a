// Package etcd keeps the ownership of a fleet in an etcd cluster.
//
// A session's record is the key /holdfast/v1/sessions/<key>, a node's is
// /holdfast/v1/nodes/<id>; the values are the root package's types as JSON. Notes
// are below /holdfast/v1/notes/.
// Epoch and revision are not in the value: they are the key's create revision
// and its modification revision.
package etcd
