package vm

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// modules returns the files of the named modules and of all that they depend on,
// in the order in which they can be loaded.
func (k kernel) modules(names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	files := make(map[string]string)
	err := filepath.WalkDir(k.moduleDir(), func(path string, _ fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			files[plain(name)] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var order []string
	seen := make(map[string]bool)
	var add func(name string) error
	add = func(name string) error {
		name = plain(name)
		if seen[name] {
			return nil
		}
		seen[name] = true
		path, ok := files[name]
		if !ok {
			return fmt.Errorf("the kernel has no module %s", name)
		}
		needs, err := depends(path)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, n := range needs {
			if err := add(n); err != nil {
				return err
			}
		}
		order = append(order, path)
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// plain returns a module's name as the kernel shows it. File names may have a dash instead
// of an underscore.
func plain(name string) string { return strings.ReplaceAll(name, "-", "_") }

// depends reads the modules that a module needs: the string "depends=a,b" of its section
// .modinfo (MODULE_INFO, include/linux/module.h).
func depends(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("%s has no .modinfo", path)
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(field, []byte("depends=")); ok && len(list) > 0 {
			return strings.Split(string(list), ","), nil
		}
	}
	return nil, nil
}
