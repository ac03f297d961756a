package echoserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
)

// Socket on which a warm container receives its identity (docs/pools.md).
const (
	identityFile   = "/run/holdfast/session.json"
	identitySocket = "/run/holdfast/session.sock"
)

// identity is the session and epoch of the server's container.
type identity struct {
	// known is called once, after a warm container has received its identity and before it
	// answers. It may be nil. After its error the server ends.
	known func() error

	mu  sync.Mutex
	env map[string]string // received with the identity; nil if the container had its identity from the start
}

func (i *identity) get(name string) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if v, ok := i.env[name]; ok {
		return v
	}
	return os.Getenv(name)
}

func (i *identity) all() map[string]string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.env
}

// listen waits until a container without an identity receives one, or ctx is done. As
// docs/pools.md describes, it uses the socket, and the file if the socket has ended.
func (i *identity) listen(ctx context.Context) error {
	if os.Getenv("HOLDFAST_SESSION") != "" {
		return nil
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", identitySocket)
	if err == nil {
		defer conn.Close()
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		if i.read(json.NewDecoder(conn)) == nil {
			if err := i.heard(); err != nil {
				return err
			}
			fmt.Fprintln(conn, "ready") // the reader may be gone
			return nil
		}
	}
	f, err := os.Open(identityFile)
	if err != nil {
		return nil // not a warm container, or no session claimed it
	}
	defer f.Close()
	if err := i.read(json.NewDecoder(f)); err != nil {
		return fmt.Errorf("read the container's identity: %w", err)
	}
	return i.heard()
}

func (i *identity) heard() error {
	if i.known == nil {
		return nil
	}
	return i.known()
}

func (i *identity) read(from *json.Decoder) error {
	var told struct {
		Env map[string]string `json:"env"`
	}
	if err := from.Decode(&told); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.env = told.Env
	return nil
}
