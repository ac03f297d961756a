package engine

import "time"

// LabelledNetwork is a network that somebody made with labels, to know it again.
type LabelledNetwork struct {
	ID      string
	Name    string
	Labels  map[string]string
	Created time.Time
}
