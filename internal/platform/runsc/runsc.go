// Package runsc saves the containers of gVisor's runtime, memory and files and
// all, and has others go on from what was saved.
//
// Saving is runsc's own command, against the directory where the engine's shim
// keeps the container's state: the engine takes no part, and sees a container
// that ends. Going on goes through the engine: its runtime of that name is a
// script of ours in front of runsc, which turns the start of a container that an
// image was staged for into a restore. So the engine needs nothing but an entry
// for a runtime; its own checkpoints would copy an image twice.
//
// runsc checks that the new container is made like the old one: arguments, mounts,
// user, capabilities and limits, but neither environment nor host name. What runs
// goes on with its old environment, and finds the new one in
// /proc/gvisor/spec_environ. Its TCP connections are cut.
package runsc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"holdfast"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/linux/deathsig"
)

// Errors that callers decide by; they come wrapped.
var (
	// ErrStranger is a process that is not the sandbox of the container.
	ErrStranger = errors.New("it is no sandbox of runsc's with this container")
	// ErrTorn is an image that is not whole.
	ErrTorn = errors.New("the image is incomplete")
)

// Runtime is a runsc, and where images are staged for the containers that it
// starts. Its methods may be called from any goroutine.
type Runtime struct {
	Program string // runsc's absolute path
	Images  string // absolute path of a directory of our own, mode 0700
}

// files are those of a whole image (runsc, boot/restore.go).
var files = []string{"checkpoint.img", "pages.img", "pages_meta.img"}

// containerID is what engines call containers: nothing that could be a path.
var containerID = regexp.MustCompile(`^[0-9a-f]{12,64}$`)

// lastWords bounds what is kept of runsc's output, in bytes.
const lastWords = 2 << 10

// Script is the program to be registered with the engine as the runtime.
func (r Runtime) Script() ([]byte, error) {
	for _, p := range []string{r.Program, r.Images} {
		if !filepath.IsAbs(p) || strings.ContainsAny(p, "'\n") {
			return nil, fmt.Errorf("runtime script: %q is no absolute path without quotes", p)
		}
	}
	return fmt.Appendf(nil, script, r.Program, r.Images), nil
}

// script gets runsc's arguments, of which the last is the container. The image is
// renamed before it is used, so that it is used once.
const script = `#!/bin/sh
# Made by holdfast: runsc, but a container that an image was staged for goes on
# from it.
runsc='%s' images='%s'
id=
for id; do :; done
staged=$images/$id
if [ -z "$id" ] || ! [ -d "$staged" ]; then
  exec "$runsc" "$@"
fi
n=$#
while [ "$n" -gt 0 ]; do
  word=$1
  shift
  n=$((n - 1))
  if [ "$word" = start ]; then
    mv -T "$staged" "$staged.used" || exit 1
    set -- "$@" restore --detach --image-path="$staged.used"
  else
    set -- "$@" "$word"
  fi
done
exec "$runsc" "$@"
`

// Install writes the script to path, whole or not at all. A file that is the same
// already is left alone.
func (r Runtime) Install(path string) error {
	text, err := r.Script()
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, text) {
		return nil
	}
	if err := atomicfile.Write(path, text, 0o755); err != nil {
		return fmt.Errorf("install the runtime at %s: %w", path, err)
	}
	return nil
}

// Checkpoint saves the running container id, whose init is the process init, into
// the empty directory dir, and ends the container. With an error, or with ctx
// done, the container may run or not, and dir is of no use. ErrStranger.
//
// That it has ended is to be seen by whoever holds its init; Checkpoint does not
// look.
func (r Runtime) Checkpoint(ctx context.Context, id string, init int, dir string) error {
	root, err := sandboxRoot(id, init)
	if err != nil {
		return fmt.Errorf("checkpoint of container %.12s: %w", id, err)
	}
	err = r.run(ctx, "--root="+root, "checkpoint", "--image-path="+dir, "--exclude-committed-zero-pages", id)
	if err == nil {
		err = whole(dir)
	}
	if err != nil {
		return fmt.Errorf("checkpoint of container %.12s: %w", id, err)
	}
	return nil
}

// Size is about how many bytes the image of the running container id would have,
// whose init is the process init: what its sandbox's memory and the files that its
// changes to file systems are in take up. ErrStranger.
func (r Runtime) Size(id string, init int) (int64, error) {
	if _, err := sandboxRoot(id, init); err != nil {
		return 0, fmt.Errorf("size of container %.12s: %w", id, err)
	}
	dir := "/proc/" + strconv.Itoa(init) + "/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, fmt.Errorf("size of container %.12s: %w", id, err)
	}
	seen := map[uint64]bool{}
	total, found := int64(0), false
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		name, err := os.Readlink(path)
		if err != nil || !strings.Contains(name, memoryFile) && !strings.Contains(name, filesFile) {
			continue // it is closed by now, or something else
		}
		fi, err := os.Stat(path)
		if err != nil {
			continue
		}
		st, ok := fi.Sys().(*syscall.Stat_t)
		if !ok || seen[st.Ino] {
			continue
		}
		seen[st.Ino] = true
		total, found = total+st.Blocks*512, true // stat(2): in units of 512 bytes
	}
	if !found {
		return 0, fmt.Errorf("size of container %.12s: process %d has no memory of a sandbox", id, init)
	}
	return total, nil
}

// What runsc calls the memory of a sandbox (runsc/boot/loader.go), and files that
// keep what was changed in a file system (runsc/boot/vfs.go).
const (
	memoryFile = "memfd:runsc-memory"
	filesFile  = ".gvisor.filestore."
)

// run runs runsc. Its own words are part of the error.
func (r Runtime) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, r.Program, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// Nobody saves a container for an agent that has died: the next one may have taken it
	// over. (What its sandbox has begun it brings to its end.)
	err := deathsig.Run(cmd, syscall.SIGKILL)
	if ctx.Err() != nil {
		return fmt.Errorf("runsc: %w", context.Cause(ctx))
	}
	if err != nil {
		text := strings.TrimSpace(out.String())
		return fmt.Errorf("runsc: %w: %s", err, text[max(0, len(text)-lastWords):])
	}
	return nil
}

// sandboxRoot is where runsc keeps the container's state, by the command line of
// its sandbox.
func sandboxRoot(id string, init int) (string, error) {
	if !containerID.MatchString(id) {
		return "", fmt.Errorf("%q is no container's id: %w", id, ErrStranger)
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(init) + "/cmdline")
	if err != nil {
		return "", err
	}
	args := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
	root := ""
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, "--root="); ok {
			root = v
		}
	}
	if args[0] != "runsc-sandbox" || root == "" || !slices.Contains(args, id) {
		return "", fmt.Errorf("process %d: %w", init, ErrStranger)
	}
	return root, nil
}

// whole looks for the files of an image.
func whole(dir string) error {
	for _, name := range files {
		fi, err := os.Lstat(filepath.Join(dir, name))
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrTorn, err)
		case !fi.Mode().IsRegular():
			return fmt.Errorf("%w: %s is no file", ErrTorn, name)
		}
	}
	return nil
}

// Stage has the start of container id, which was created and never started, be a
// restore from the image in dir, once. It takes dir away, which has to be on the
// file system of Images. ErrTorn.
func (r Runtime) Stage(id, dir string) error {
	if !containerID.MatchString(id) {
		return fmt.Errorf("stage an image: %q is no container's id", id)
	}
	if err := whole(dir); err != nil {
		return fmt.Errorf("stage an image for container %.12s: %w", id, err)
	}
	if err := os.Rename(dir, filepath.Join(r.Images, id)); err != nil {
		return fmt.Errorf("stage an image for container %.12s: %w", id, err)
	}
	return nil
}

// Unstage removes what is left of container id's image, once it was started, or
// will not be. It reports whether the start has used it.
func (r Runtime) Unstage(id string) (used bool, err error) {
	if !containerID.MatchString(id) {
		return false, fmt.Errorf("unstage an image: %q is no container's id", id)
	}
	path := filepath.Join(r.Images, id)
	_, err = os.Lstat(path + ".used")
	used = err == nil
	if err := errors.Join(os.RemoveAll(path), os.RemoveAll(path+".used")); err != nil {
		return used, fmt.Errorf("remove the image of container %.12s: %w", id, err)
	}
	return used, nil
}

// Sweep removes the images that nobody will start any more: after a crash, before
// anything is staged anew.
func (r Runtime) Sweep() error {
	entries, err := os.ReadDir(r.Images)
	if err != nil {
		return fmt.Errorf("sweep staged images: %w", err)
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(r.Images, e.Name())))
	}
	return errors.Join(errs...)
}

// Check looks at what the methods need. The error has a hint.
func (r Runtime) Check() error {
	if fi, err := os.Stat(r.Program); err != nil || fi.Mode()&0o111 == 0 {
		return holdfast.WithHint(fmt.Errorf("runsc: %s is no program", r.Program), "docs/untrusted-code.md says how to install it")
	}
	if fi, err := os.Stat(r.Images); err != nil || !fi.IsDir() || fi.Mode().Perm()&0o077 != 0 {
		return holdfast.WithHint(fmt.Errorf("runsc: %s is no directory that only its owner can read", r.Images), "memory of sessions is in there: mkdir -m 0700")
	}
	return nil
}
