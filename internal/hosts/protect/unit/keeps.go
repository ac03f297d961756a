package unit

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/linux/kfile"
)

// A server that keeps its listening sockets in a reload, such as nginx and HAProxy,
// refuses no connection then, and a hold only delays them. The first reload of each start
// of a service shows it: Keeps notes that start, and Guard does not hold further reloads
// of it.

// Keeps notes that the service's present start keeps its sockets in reloads.
func (m *Manager) Keeps(ctx context.Context, service string) error {
	id, err := m.invocation(ctx, service)
	if err == nil {
		err = atomicfile.WriteNoSync(keepsPath(service), []byte(id), 0o600)
	}
	if err != nil {
		return fmt.Errorf("note that %s keeps its sockets: %w", service, err)
	}
	return nil
}

// keeps reports whether Keeps has noted the service's present start.
func (m *Manager) keeps(ctx context.Context, service string) (bool, error) {
	noted, err := kfile.Read(keepsPath(service), maxFile)
	if err != nil {
		return false, nil // none, or unreadable: then the reload is held
	}
	id, err := m.invocation(ctx, service)
	return err == nil && id == string(noted), err
}

func forgetKeeps(service string) { _ = os.Remove(keepsPath(service)) } // there may be none

func keepsPath(service string) string {
	return filepath.Join(protect.LockDir, "keeps-"+service)
}

// invocation identifies one start of a service (INVOCATION_ID, systemd.exec(5)).
func (m *Manager) invocation(ctx context.Context, service string) (string, error) {
	v, err := m.property(ctx, service, "InvocationID")
	if err != nil {
		return "", err
	}
	id, ok := v.([]byte)
	if !ok || len(id) == 0 {
		return "", fmt.Errorf("systemd says that the invocation of %s is %v", service, v)
	}
	return hex.EncodeToString(id), nil
}
