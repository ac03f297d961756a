// Package check proves from outside that no session ran twice at a time. It does not depend on
// how Holdfast works. It checks the ticks of containers (Overlap), the calls of nodes to
// their store with their answers (History), and the sessions of each container (HandedOn).
//
// All times are CLOCK_BOOTTIME of one machine, as the time since it booted. Without any data a
// check returns ErrNothing, because nothing is proved.
package check

import "errors"

// ErrNothing is returned if there was nothing to check. A check without data proves nothing.
var ErrNothing = errors.New("there was nothing to check")
