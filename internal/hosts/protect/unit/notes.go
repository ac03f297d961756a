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
		err = atomicfile.WriteNoSync(notePath("keeps", service), []byte(id), 0o600)
	}
	if err != nil {
		return fmt.Errorf("note that %s keeps its sockets: %w", service, err)
	}
	return nil
}

// keeps reports whether Keeps has noted the service's present start.
func (m *Manager) keeps(ctx context.Context, service string) (bool, error) {
	noted, err := kfile.Read(notePath("keeps", service), maxFile)
	if err != nil {
		return false, nil // none, or unreadable: then the reload is held
	}
	id, err := m.invocation(ctx, service)
	return err == nil && id == string(noted), err
}

// noteHeld notes that a job of the service is held. Two helpers ask for a hold of one
// restart, and the second one finds the note.
func noteHeld(service string, job uint32) error {
	return atomicfile.WriteNoSync(notePath("job", service), fmt.Append(nil, job), 0o600)
}

// held reports whether noteHeld has noted the job.
func held(service string, job uint32) bool {
	noted, err := kfile.Read(notePath("job", service), maxFile)
	return err == nil && string(noted) == fmt.Sprint(job)
}

// forgetNotes removes the notes about a service.
func forgetNotes(service string) {
	for _, kind := range []string{"keeps", "job"} {
		_ = os.Remove(notePath(kind, service)) // there may be none
	}
}

func notePath(kind, service string) string {
	return filepath.Join(protect.LockDir, kind+"-"+service)
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
