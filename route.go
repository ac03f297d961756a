package holdfast

// Route is where a session is served at the moment.
type Route struct {
	Key         SessionKey
	Node        NodeID // that serves it; "" is this node
	Address     string // host:port of the session's server, or the peer address of the other node
	Epoch       Epoch
	ContainerID string // "" if another node serves it
	// Keep is how clients' WebSockets are kept when the session moves. It is nil if
	// they are closed then, or if another node serves the session.
	Keep *KeepSockets
	// Upgrades are the protocols, beside WebSocket, to which a client may switch its
	// connection. It is nil if another node serves the session; that node decides.
	Upgrades []string
	// Ports are the ports of the container that clients may reach beside that of
	// Address. It is empty if another node serves the session; that node decides.
	Ports Ports
	// Activity is not nil if this node serves the session, and the session sleeps when its
	// connections carry no data.
	Activity Activity
	// Left is closed when this node stops serving the session, because the container
	// died or the session leaves. Connections that are still open then are not
	// migrated.
	Left <-chan struct{}
}
