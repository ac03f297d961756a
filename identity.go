package holdfast

// Identity is the data that a container of a warm pool receives when a session claims
// it, and that other containers have from the start. It is the JSON in session.json
// and on session.sock in /run/holdfast, see docs/pools.md.
type Identity struct {
	Session SessionKey `json:"session"`
	Epoch   Epoch      `json:"epoch"`
	// Env is the template's environment with the session's key filled in, and
	// HOLDFAST_SESSION and HOLDFAST_EPOCH.
	Env map[string]string `json:"env"`
}
