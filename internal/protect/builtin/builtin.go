// Package builtin lists the ways of holding that there are.
package builtin

import (
	"holdfast/internal/protect"
	"holdfast/internal/protect/migrate"
	"holdfast/internal/protect/nfqueue"
	"holdfast/internal/protect/park"
	"holdfast/internal/protect/plug"
)

// Backends are all, best first.
func Backends() []protect.Backend {
	return []protect.Backend{park.Backend{}, nfqueue.New(), migrate.Backend{}, plug.Backend{}}
}
