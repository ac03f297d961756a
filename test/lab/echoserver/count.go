package echoserver

import (
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
)

// Count is the answer of /count.
type Count struct {
	Number     int    `json:"number"`     // of calls to this process and those that it continues
	File       string `json:"file"`       // the number of the call before, from a file of the container
	Generation string `json:"generation"` // /run/holdfast/generation, "" if there is none
}

// counter counts calls in memory.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) count(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	const file = "/count"
	before, _ := os.ReadFile(file) // the first call finds none
	generation, _ := os.ReadFile("/run/holdfast/generation")
	if err := os.WriteFile(file, []byte(strconv.Itoa(c.n)), 0o600); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	// An error means that the client has gone.
	_ = json.NewEncoder(w).Encode(Count{c.n, string(before), strings.TrimSpace(string(generation))})
}
