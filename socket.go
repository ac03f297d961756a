package holdfast

import "time"

// KeepSockets is how a gateway keeps clients' WebSockets while their session moves or
// boots again. It does not change after its creation.
type KeepSockets struct {
	// Time is how long a socket waits for its session's next server. It is over 0.
	Time time.Duration `json:"time"`
	// Buffer is the number of bytes of a client's frames that are kept meanwhile, at
	// least 1. A client that sends more has to wait.
	Buffer int `json:"buffer"`
	// Tell is sent to the client when its socket continues; "" sends nothing.
	Tell string `json:"tell,omitempty"`
	// Ping sends Tell as the payload of a Ping frame, of at most MaxPing bytes,
	// instead of a text message.
	Ping bool `json:"ping,omitempty"`
	// Asleep keeps sockets open while their session is suspended, however long that is. Time
	// counts from the moment at which the session is resumed, or the client sends data.
	Asleep bool `json:"asleep,omitempty"`
}

// Bounds of KeepSockets.
const (
	MaxPing = 125  // bytes of a control frame's payload (RFC 6455, 5.5)
	MaxTell = 1024 // bytes of a text message
)
