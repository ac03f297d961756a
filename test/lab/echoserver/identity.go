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
	// known is called once, when a warm container has received its identity and has not
	// said so yet; nil: nothing is to be done then. After its error the server ends.
	known func() error

	mu  sync.Mutex
	env map[string]string // that it was told, nil for one that knew from the start
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

// listen waits until a container that has no identity receives it, or ctx is
// done. It does as docs/pools.md says: the socket, and the file where that is over.
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
		return nil // not a warm container, or never claimed
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
