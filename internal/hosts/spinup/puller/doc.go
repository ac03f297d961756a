// Package puller pulls images and measures it: the stream of the engine goes
// through a spinup.Reducer, and what comes out is a spinup.Record for each image.
//
// The pull itself is never kept waiting for what measuring wants to know. What
// kind of engine it is, and the exact sizes of the layers from the image's
// manifest, are asked for beside it; whatever comes too late is left out, and
// the figures say so.
package puller
