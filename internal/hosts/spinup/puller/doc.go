// Package puller pulls images and measures the pulls: the stream of the engine goes
// through a spinup.Reducer, and what comes out is a spinup.Record for each image.
//
// Measuring never delays the pull. The kind of engine, and the exact sizes of the
// layers from the image's manifest, are queried in parallel. An answer that comes
// too late is left out, and the figures show that.
package puller
