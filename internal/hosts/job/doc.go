// Package job runs a job on this host: a list of images, each of which becomes a
// container. The first is the primary one, where the job's steps run; the others
// are its services, which it reaches by name on a network of their own. With a
// parallelism of n all of that is there n times, side by side.
//
// A Runner pulls the images, each once and all at the same time, and brings each
// container up as soon as its own image is there: creates and starts go on while
// other images are still being pulled. Each container's way up is timed, and makes
// one spinup.Record.
//
// # Who cleans up
//
// Everything that a job makes carries the job's id and its owner as labels. A
// Runner removes what carries its id before Run returns, whatever happened. What
// a killed process leaves is found by the labels: a Watcher, which is a process of
// its own, removes it at once, and Sweep, later, what all jobs left whose owners
// are dead. Of containers the name has to fit, too: labels also come with images.
package job
