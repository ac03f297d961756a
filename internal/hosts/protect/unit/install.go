package unit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"holdfast"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/netns"
)

// State is a protected service.
type State struct {
	Settings
	// Active is the service's state: active, failed and so on.
	Active string `json:"active"`
	// Guarded reports whether the next restart is protected: the helper units are active.
	Guarded bool `json:"guarded"`
	// Holding reports whether connections are held now.
	Holding bool `json:"holding"`
}

// Install protects the restarts of a service that runs and listens, from now on and after
// a boot. Files that have the right text already are not written. Errors: ErrNoUnit,
// protect.ErrNothingListens.
func Install(ctx context.Context, m *Manager, dir string, s Settings) error {
	if err := s.listens(); err != nil {
		return err
	}
	// What an earlier installation had in addition would still act on reloads.
	reload := prefixReload + s.Service
	if _, err := os.Stat(filepath.Join(dir, reload)); err == nil && s.RestartOnly {
		if err := remove(ctx, m, dir, s.Service, reload); err != nil {
			return err
		}
	}
	changed := false
	for _, f := range s.Files(dir) {
		if old, err := kfile.Read(f.Path, maxFile); err == nil && string(old) == f.Text {
			continue
		}
		changed = true
		err := os.MkdirAll(filepath.Dir(f.Path), 0o755)
		if err == nil {
			err = atomicfile.Write(f.Path, []byte(f.Text), 0o644)
		}
		if err != nil {
			return fmt.Errorf("write a unit: %w", err)
		}
	}
	if changed {
		if err := m.Reload(ctx); err != nil {
			return err
		}
	}
	for _, name := range s.helpers() {
		if err := m.Start(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// listens checks that a hold of the service would find something to hold.
func (s Settings) listens() error {
	pids, err := protect.UnitPIDs(s.Service)
	if err != nil || len(s.Addresses) > 0 {
		return err
	}
	_, err = protect.ListenedBy(netns.OfProcess(pids[0]), pids)
	if errors.Is(err, protect.ErrNothingListens) {
		err = holdfast.WithHint(fmt.Errorf("%s: %w on any TCP port", s.Service, protect.ErrNothingListens),
			"name the port with --port if another process of the host listens for it")
	}
	return err
}

// Remove ends the protection of a service. It waits until the helper units have ended. It
// ignores a service that is not protected.
func Remove(ctx context.Context, m *Manager, dir, service string) error {
	defer forgetNotes(service)
	return remove(ctx, m, dir, service, prefixReload+service, prefixRestart+service, prefixHold+service)
}

// remove removes units of a service, and with them the drop-in that names them.
func remove(ctx context.Context, m *Manager, dir, service string, names ...string) error {
	files := []string{filepath.Join(dir, service+".d", dropIn)}
	for _, n := range names {
		files = append(files, filepath.Join(dir, n))
	}
	gone := false
	for _, f := range files {
		err := os.Remove(f)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a unit: %w", err)
		}
		gone = gone || err == nil
	}
	if !gone {
		return nil
	}
	_ = os.Remove(filepath.Join(dir, service+".d")) // it may have other files
	// The units are stopped before systemd forgets their files: a hold releases.
	for _, n := range names {
		if state, _, err := m.Active(ctx, n); err != nil || state == "inactive" {
			continue
		}
		if err := m.Stop(ctx, n); err != nil {
			return err
		}
		m.forget(ctx, n)
	}
	return m.Reload(ctx)
}

// maxFile bounds a file of systemd's, in bytes.
const maxFile = 64 << 10

// Installed returns the settings of the protected services, by name. An unreadable
// drop-in is an error.
func Installed(dir string) ([]Settings, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.service.d", dropIn))
	if err != nil {
		return nil, err
	}
	var all []Settings
	for _, f := range files {
		b, err := kfile.Read(f, maxFile)
		if err != nil {
			return nil, fmt.Errorf("read a protected unit: %w", err)
		}
		s := Settings{Service: strings.TrimSuffix(filepath.Base(filepath.Dir(f)), ".d")}
		for line := range bytes.Lines(b) {
			if rest, ok := bytes.CutPrefix(line, []byte(marker)); ok {
				err = json.Unmarshal(rest, &s)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("read the settings in %s: %w", f, err)
		}
		all = append(all, s)
	}
	return all, nil
}

// Status returns the state of the protected services.
func Status(ctx context.Context, m *Manager, dir string) ([]State, error) {
	all, err := Installed(dir)
	if err != nil {
		return nil, err
	}
	states := []State{}
	for _, s := range all {
		of := State{Settings: s, Guarded: true}
		if of.Active, _, err = m.Active(ctx, s.Service); err != nil {
			return nil, err
		}
		for _, h := range s.helpers() {
			state, _, err := m.Active(ctx, h)
			if err != nil {
				return nil, err
			}
			of.Guarded = of.Guarded && state == "active"
		}
		hold, _, err := m.Active(ctx, prefixHold+s.Service)
		if err != nil {
			return nil, err
		}
		of.Holding = hold == "active" || hold == "activating"
		states = append(states, of)
	}
	return states, nil
}
