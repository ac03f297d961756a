package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"holdfast"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/linux/kfile"
)

// maxRecord is the maximum size of a record in bytes.
const maxRecord = 64 << 10

// version is the version of the record's format.
const version = 1

// record is the file that restores a standing keeper after a boot.
type record struct {
	Version int                 `json:"version"`
	Ports   []protect.Installed `json:"ports"`
}

// read returns the recorded ports, and none if the file does not exist.
func read(file string) ([]protect.Installed, error) {
	if file == "" {
		return nil, nil
	}
	b, err := kfile.Read(file, maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var r record
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	switch {
	case err != nil:
	case r.Version != version:
		err = fmt.Errorf("version %d, and this program knows %d", r.Version, version)
	default:
		err = check(r.Ports)
	}
	if err != nil {
		return nil, holdfast.WithHint(fmt.Errorf("read what is installed from %s: %w", file, err),
			"`holdfast protect uninstall` removes it; then install the ports again")
	}
	return r.Ports, nil
}

// check rejects invalid ports.
func check(ports []protect.Installed) error {
	if len(ports) > protect.MaxInstalled {
		return fmt.Errorf("%d addresses are more than %d", len(ports), protect.MaxInstalled)
	}
	for _, p := range ports {
		if p.Port == 0 || !slices.Contains(protect.Names(), p.Backend) {
			return fmt.Errorf("port %d with backend %q is invalid", p.Port, p.Backend)
		}
	}
	return nil
}

// write replaces the file atomically; without ports it removes the file.
func write(file string, ports []protect.Installed) error {
	switch {
	case file == "":
		return nil
	case len(ports) == 0:
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the record of what is installed: %w", err)
		}
		return nil
	}
	b, err := json.MarshalIndent(record{version, ports}, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = atomicfile.Write(file, append(b, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("record what is installed: %w", err)
	}
	return nil
}
