package holdfast

// Route is where a session is served right now.
type Route struct {
	Key         SessionKey
	Node        NodeID // that serves it; "" is this one
	Address     string // host:port of the session's server, or of the other node's hop listener
	Epoch       Epoch
	ContainerID string // "" where another node serves it
	// Keep is how clients' WebSockets are kept when the session moves; nil
	// where they are closed then, and where another node serves it.
	Keep *KeepSockets
	// SuspendNote is closed when the session stops being served here: the
	// container died, or the session leaves. Connections still open then
	// are on their own.
	Left <-chan struct{}
}
