package holdfast

import "time"

// KeepSockets is how a gateway keeps clients' WebSockets while their session
// moves or boots anew. It is never changed once it is made.
type KeepSockets struct {
	// Time is how long a socket waits for its session's next server, over 0.
	Time time.Duration `json:"time"`
	// Buffer is how many bytes of a client's frames are kept meanwhile, from
	// 1; a client that has more to say waits.
	Buffer int `json:"buffer"`
	// Tell is what the client is sent when its socket goes on; "" is nothing.
	Tell string `json:"tell,omitempty"`
	// Ping sends Tell as the payload of a Ping, of at most MaxPing bytes, and
	// not as a text message.
	Ping bool `json:"ping,omitempty"`
}

// Bounds of KeepSockets.
const (
	MaxPing = 125  // bytes of a control frame's payload (RFC 6455, 5.5)
	MaxTell = 1024 // bytes of a text message
)
