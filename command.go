package holdfast

import "time"

// Command is a detached command: it runs in a session's container until it ends, and no
// caller has to wait for it.
type Command struct {
	ID          string     `json:"id"`
	Key         SessionKey `json:"key"`
	ContainerID string     `json:"container_id"`
	Command     []string   `json:"command"`
	TTY         bool       `json:"tty,omitempty"`
	Stdin       bool       `json:"stdin,omitempty"` // it takes input
	StartedAt   time.Time  `json:"started_at"`
	EndedAt     time.Time  `json:"ended_at,omitzero"` // zero while it runs
	// ExitCode is that of the command once it has ended, -1 if it is unknown.
	ExitCode int `json:"exit_code"`
	// Error says why the exit code is unknown.
	Error    string `json:"error,omitempty"`
	Output   int64  `json:"output_bytes"` // written so far, on both streams
	Lost     int64  `json:"lost_bytes"`   // the first ones of them, which are no longer kept
	Attached int    `json:"attached"`     // callers that read its output now
}

// Running reports whether the command has not ended.
func (c Command) Running() bool { return c.EndedAt.IsZero() }
