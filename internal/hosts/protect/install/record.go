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
)

// maxRecord bounds a record, in bytes.
const maxRecord = 64 << 10

// version is the format's.
const version = 1

// record is the file by which a standing keeper comes back after a boot.
type record struct {
	Version int                 `json:"version"`
	Ports   []protect.Installed `json:"ports"`
}

// read is what is recorded in the file; nothing where it is not there.
func read(file string) ([]protect.Installed, error) {
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read what is installed: %w", err)
	}
	var r record
	err = json.Unmarshal(b, &r)
	switch {
	case err == nil && r.Version != version:
		err = fmt.Errorf("version %d, and this program knows %d", r.Version, version)
	case err == nil:
		err = check(r.Ports)
	}
	if err != nil || len(b) > maxRecord {
		return nil, holdfast.WithHint(fmt.Errorf("read what is installed from %s: %w", file, errors.Join(err, tooLong(b))),
			"`holdfast protect uninstall` removes it; then install the ports again")
	}
	return r.Ports, nil
}

func tooLong(b []byte) error {
	if len(b) > maxRecord {
		return fmt.Errorf("it has %d bytes", len(b))
	}
	return nil
}

// check refuses what cannot be.
func check(ports []protect.Installed) error {
	if len(ports) > protect.MaxInstalled {
		return fmt.Errorf("%d addresses are more than %d", len(ports), protect.MaxInstalled)
	}
	for _, p := range ports {
		if p.Port == 0 || !slices.Contains(protect.Names(), p.Backend) {
			return fmt.Errorf("port %d with backend %q cannot be", p.Port, p.Backend)
		}
	}
	return nil
}

// write replaces the file, all of it or nothing; without ports it goes.
func write(file string, ports []protect.Installed) error {
	switch {
	case file == "":
		return nil
	case len(ports) == 0:
		return remove(file)
	}
	b, err := json.MarshalIndent(record{version, ports}, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = atomicfile.Write(file, append(b, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write down what is installed: %w", err)
	}
	return nil
}

func remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of what is installed: %w", err)
	}
	return nil
}
