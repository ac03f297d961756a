// Package builtin lists the backends of package protect.
package builtin

import (
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/migrate"
	"holdfast/internal/hosts/protect/nfqueue"
	"holdfast/internal/hosts/protect/park"
	"holdfast/internal/hosts/protect/plug"
	"holdfast/internal/hosts/protect/steer"
)

// Backends returns all backends, the best first, and that for datagrams.
func Backends() []protect.Backend {
	return []protect.Backend{park.Backend{}, nfqueue.New(), migrate.Backend{}, plug.New(), steer.Backend{}}
}
