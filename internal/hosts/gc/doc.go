// Package gc frees disk space of a container engine without slowing down
// concurrent spin-ups.
//
// Plan is pure: it turns a State (what the engine has, and how full its disk is)
// and a Config into an ordered list of deletions, each with its reason. A
// Collector reads the state, carries out one deletion at a time and checks the
// disk again after each.
//
// While an engine removes an image it holds locks that container creation needs,
// for as long as freeing the image's files takes (moby, layer/layer_store.go
// Release and image/store.go Delete). Therefore no deletion begins during a
// spin-up. On overlay2, and on the containerd image store with overlayfs, the files
// are also linked into a trash directory first: the engine then only removes names.
// The blocks are freed later, in small steps that pause for spin-ups too.
//
// Nothing is removed by force. Every object is checked for use again right
// before its removal. A removal that the engine refuses is skipped with its
// reason.
package gc
