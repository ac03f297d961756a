// Package reload runs a part of `holdfast bench reload` with the released program. HAProxy in
// front of nginx is reloaded ten times a second and restarted three times a second, and no
// client of a protected port fails.
package reload
