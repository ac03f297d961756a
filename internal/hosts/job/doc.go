// Package job runs a job on this host: a list of images, each of which becomes a
// container. The first is the primary container, in which the job's steps run. The
// others are its services, which it reaches by name on a private network. With a
// parallelism of n there are n copies of all of that.
//
// A Runner pulls each image once, all at the same time. It creates and starts each
// container as soon as its own image is present, while other images are still
// being pulled. Each container's start is timed and makes one spinup.Record.
//
// # Cleaning up
//
// Everything that a job makes carries the job's id and its owner as labels. A
// Runner removes what carries its id before Run returns, in every case. What a
// killed process leaves is found by the labels: a Watcher, a separate process,
// removes it at once, and Sweep later removes what is left of all jobs with dead
// owners. A container's name has to match, too, because images can carry labels.
package job
