package engine

import "time"

// LabelledNetwork is a network with labels, by which its maker recognises it.
type LabelledNetwork struct {
	ID      string
	Name    string
	Labels  map[string]string
	Created time.Time
}
