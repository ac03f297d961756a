// Package gc frees disk space of a container engine without slowing down what
// spins up beside it.
//
// Plan is pure: it turns a State (what the engine has, and how full its disk is)
// and a Config into deletions in order, each with its reason. A Collector reads
// the state, carries out the plan one deletion at a time and looks at the disk
// again after each.
//
// An engine that removes an image holds locks that the creation of containers
// needs, for as long as it takes to free the image's files (moby,
// layer/layer_store.go Release and image/store.go Delete). So no deletion begins
// while anything spins up, and on overlay2 the files are linked into a trash
// directory first: the engine only takes names away, and the blocks are freed
// later, in small steps that stop for spin-ups too.
//
// Nothing is ever removed by force. What is in use is looked at again right
// before each removal, and what the engine refuses is skipped with its reason.
package gc
