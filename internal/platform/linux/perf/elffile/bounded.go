package elffile

import "time"

// Bounded runs find, which names addresses from files of programs, in a goroutine of its
// own. It reports false if find does not return within the limit: a file may be on a file
// system that does not respond, and a read cannot be cancelled, so the goroutine stays.
// If find panics, the result is the zero value: debug/elf is not hardened against
// maliciously made files. The goroutine may outlive the call, so find must not use data
// that changes.
func Bounded[T any](limit time.Duration, find func() T) (found T, inTime bool) {
	done := make(chan T, 1)
	go func() {
		defer func() {
			if recover() != nil {
				var none T
				done <- none
			}
		}()
		done <- find()
	}()
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case found = <-done:
		return found, true
	case <-late.C:
		return found, false
	}
}
