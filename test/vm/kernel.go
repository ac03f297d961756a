package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"
)

// kernelPackage is Debian's kernel for virtual machines. It is small. What containers need
// is built in, or in modules that are not compressed.
const kernelPackage = "linux-image-cloud-amd64"

// kernel is the directory with an unpacked kernel package.
type kernel string

// image returns the path of the only bootable file.
func (k kernel) image() string { return k.only("boot/vmlinuz-*") }

// moduleDir returns the tree of the kernel's modules.
func (k kernel) moduleDir() string { return k.only("lib/modules/*") }

func (k kernel) only(pattern string) string {
	found, _ := filepath.Glob(filepath.Join(string(k), pattern)) // the pattern is well-formed
	if len(found) != 1 {
		return filepath.Join(string(k), pattern) // opening it reports that it is missing
	}
	return found[0]
}

// Fetch downloads a kernel to the user's cache directory if it is missing, so that Run needs
// no network. Several processes may call it at once.
func Fetch(ctx context.Context) error {
	if _, err := findKernel(ctx); err != nil {
		return fmt.Errorf("find a kernel for machines: %w", err)
	}
	return nil
}

// findKernel returns the kernel in the user's cache directory. If it is missing, findKernel
// downloads and unpacks the package, without installing it. Remove the directory to get a
// newer kernel.
func findKernel(ctx context.Context) (kernel, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "holdfast")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(cache, "kernel.lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	dir := filepath.Join(cache, "kernel")
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return kernel(dir), err
	}
	tmp, err := os.MkdirTemp(cache, "kernel-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := fetchKernel(ctx, tmp); err != nil {
		return "", err
	}
	return kernel(dir), os.Rename(filepath.Join(tmp, "unpacked"), dir)
}

// lock locks a file until the returned function is called, because tests of several packages
// run at once.
func lock(path string) (unlock func(), err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { f.Close() }, nil
}

// current returns the package that the meta package depends on:
//
//	Depends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)
var current = regexp.MustCompile(`(?m)^Depends: (linux-image-[0-9][-+.a-z0-9]*)`)

func fetchKernel(ctx context.Context, dir string) error {
	show, err := command(ctx, dir, "apt-cache", "show", "--no-all-versions", kernelPackage)
	if err != nil { // apt has no lists yet
		if _, err := command(ctx, dir, "apt-get", "-qq", "update"); err != nil {
			return err
		}
		if show, err = command(ctx, dir, "apt-cache", "show", "--no-all-versions", kernelPackage); err != nil {
			return err
		}
	}
	name := current.FindSubmatch(show)
	if name == nil {
		return fmt.Errorf("apt-cache show %s names no kernel:\n%s", kernelPackage, show)
	}
	if _, err := command(ctx, dir, "apt-get", "-qq", "download", string(name[1])); err != nil {
		// Old lists name a version that no longer exists.
		_, updateErr := command(ctx, dir, "apt-get", "-qq", "update")
		if _, again := command(ctx, dir, "apt-get", "-qq", "download", string(name[1])); again != nil {
			return errors.Join(err, updateErr)
		}
	}
	debs, _ := filepath.Glob(filepath.Join(dir, "*.deb")) // the pattern is well-formed
	if len(debs) != 1 {
		return fmt.Errorf("apt-get download %s left %d packages", name[1], len(debs))
	}
	_, err = command(ctx, dir, "dpkg-deb", "-x", debs[0], "unpacked")
	return err
}

func command(ctx context.Context, dir string, argv ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s: %w: %s", argv, err, bytes.TrimSpace(complaint.Bytes()))
	}
	return out, nil
}
