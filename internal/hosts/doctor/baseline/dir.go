package baseline

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"holdfast"
	"holdfast/internal/platform/atomicfile"
)

// DirName is the directory of the baselines below the data directory.
const DirName = "doctor-baselines"

// maxFile bounds the size of a baseline's file in bytes, maxKept the number of baselines.
const (
	maxFile = 64 << 10
	maxKept = 200
)

// Dir stores baselines in a directory, one file each. Its methods may be called from any
// goroutine.
type Dir string

func (d Dir) path(name string) string { return filepath.Join(string(d), name+".json") }

// Save writes a baseline. It replaces one of the same name.
func (d Dir) Save(b Baseline) error {
	text, err := Encode(b)
	if err != nil {
		return fmt.Errorf("save baseline: %w", err)
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("save baseline %s: %w", b.Name, err)
	}
	if _, err := os.Stat(d.path(b.Name)); errors.Is(err, fs.ErrNotExist) {
		if all, err := d.List(); err == nil && len(all) >= maxKept {
			return holdfast.WithHint(fmt.Errorf("save baseline %s: there are already %d", b.Name, len(all)), "remove some with: holdfast doctor baseline rm")
		}
	}
	if err := atomicfile.Write(d.path(b.Name), text, 0o600); err != nil {
		return fmt.Errorf("save baseline %s: %w", b.Name, err)
	}
	return nil
}

// List returns the baselines sorted by name. It returns an error for invalid files
// together with the valid baselines.
func (d Dir) List() ([]Baseline, error) {
	files, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return []Baseline{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list baselines: %w", err)
	}
	all := []Baseline{}
	var errs []error
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok || CheckName(name) != nil {
			continue
		}
		b, err := d.read(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, b)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all, errors.Join(errs...)
}

func (d Dir) read(name string) (Baseline, error) {
	f, err := os.Open(d.path(name))
	if err != nil {
		return Baseline{}, fmt.Errorf("read baseline %s: %w", name, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return Baseline{}, fmt.Errorf("read baseline %s: %w", name, err)
	}
	b, err := Decode(text)
	if err == nil && b.Name != name {
		err = fmt.Errorf("the file holds the baseline %s", b.Name)
	}
	if err != nil {
		return Baseline{}, fmt.Errorf("read baseline %s: %w", name, err)
	}
	return b, nil
}

// Remove removes a baseline. It returns holdfast.ErrNotFound if there is none of the
// name.
func (d Dir) Remove(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	err := os.Remove(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		err = holdfast.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("remove baseline %s: %w", name, err)
	}
	return nil
}

// Encode returns the stored form of a baseline.
func Encode(b Baseline) ([]byte, error) {
	if err := b.Validate(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(b)
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("it has %d bytes, at most %d are stored", len(text), maxFile)
	}
	return text, err
}

// Decode parses the stored form of a baseline.
func Decode(text []byte) (Baseline, error) {
	var b Baseline
	if len(text) > maxFile {
		return b, fmt.Errorf("it has more than %d bytes", maxFile)
	}
	if err := json.Unmarshal(text, &b); err != nil {
		return b, err
	}
	return b, b.Validate()
}
