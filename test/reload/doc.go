// Package reload runs a slice of `holdfast bench reload` with the binary as it is
// shipped: HAProxy before nginx is reloaded ten times a second and restarted three
// times a second, and no client of a protected port fails.
package reload
