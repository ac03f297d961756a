// Package embedded keeps ownership for a single node: in memory, and on disk in one bbolt
// file that belongs to this process (Open). Each call sees the effects of those before it,
// and a change is on disk when its call returns.
//
// The store has no listener and no goroutine at rest. Calls wait in a queue, and one
// goroutine carries them out as long as there are any. Calls that arrive during a commit
// share the next one, so a burst costs a few commits.
package embedded
