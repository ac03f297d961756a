package holdfast

import "time"

// WarmImage is an image that a node keeps present on its host.
type WarmImage struct {
	Image string    `json:"image"`
	Fixed bool      `json:"fixed"` // of the configuration, and not of a command
	State WarmState `json:"state"`
	// Error is why the last try to fetch it failed, and Again when the next
	// one is.
	Error string    `json:"error,omitempty"`
	Again time.Time `json:"again,omitzero"`
}

// WarmState is how far a warm image is.
type WarmState string

// The states.
const (
	WarmUnknown WarmState = "unknown" // nobody has looked yet, or the engine does not say
	WarmPresent WarmState = "present"
	WarmPulling WarmState = "pulling"
	WarmMissing WarmState = "missing"
)
