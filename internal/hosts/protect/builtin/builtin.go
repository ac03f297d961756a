// Package builtin lists the ways of holding that there are.
package builtin

import (
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/migrate"
	"holdfast/internal/hosts/protect/nfqueue"
	"holdfast/internal/hosts/protect/park"
	"holdfast/internal/hosts/protect/plug"
)

// Backends are all, best first.
func Backends() []protect.Backend {
	return []protect.Backend{park.Backend{}, nfqueue.New(), migrate.Backend{}, plug.Backend{}}
}
