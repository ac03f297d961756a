package holdfast

// Route is where a session is served right now.
type Route struct {
	Key         SessionKey
	Address     string // host:port of the session's server
	Epoch       Epoch
	ContainerID string
	// Left is closed when the session stops being served here: the
	// container died, or the session leaves. Connections still open then
	// are on their own.
	Left <-chan struct{}
}
