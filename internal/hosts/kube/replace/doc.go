// Package replace takes nodes out of a Kubernetes cluster one after another, or a few
// at a time: cordon, evict, wait until the pods are ready elsewhere, run the user's
// command that deletes the machine.
//
// All nodes that are to go are cordoned first. Else the pods of the first would be
// placed on the next, and move again and again: the scheduler prefers nodes with room,
// which the last drained neighbours of an old node are. What is left when a run stops is
// uncordoned again.
//
// What a run has done stands in an annotation of each node (Mark), so another process
// can go on with it after a crash, or undo it.
package replace
