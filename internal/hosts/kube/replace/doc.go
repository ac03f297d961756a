// Package replace removes nodes from a Kubernetes cluster one after another, or a
// few at a time: cordon, evict, wait until the pods are ready elsewhere, run the
// user's command that deletes the machine.
//
// All nodes to be replaced are cordoned first. Otherwise the pods of the first would
// be scheduled to the next and move again and again: the scheduler prefers nodes with
// free capacity, such as the old nodes drained last. If a run stops, the nodes not yet
// drained are uncordoned again.
//
// The progress of a run is in an annotation of each node (Mark), so another process
// can continue it after a crash, or undo it.
package replace
