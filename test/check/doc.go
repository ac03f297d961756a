// Package check proves from outside that a session never lived twice. It knows
// nothing of how Holdfast works, and looks at three things: at what containers
// wrote of themselves (Overlap), at what nodes asked their store and were
// told (History), and at which containers served which session (HandedOn).
//
// All times are of one machine's CLOCK_BOOTTIME, as the time since it booted.
package check

import "errors"

// ErrNothing is returned where there was nothing to look at: nothing is proved
// by that.
var ErrNothing = errors.New("there was nothing to check")
