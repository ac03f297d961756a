// Package runsc checkpoints containers of gVisor's runtime, with memory and files,
// and restores them in new containers.
//
// A checkpoint is made by runsc's own command on the directory in which the engine's
// shim keeps the container's state. The engine takes no part and sees a container
// that exits. A restore goes through the engine. The engine's runtime is a script in
// front of runsc, which turns the start of a container with a staged image into a
// restore. The engine only needs an entry for that runtime. Its own checkpoints would
// copy an image twice.
//
// runsc checks that the new container has the arguments, mounts, user, capabilities
// and limits of the old one. It does not compare environment and host name. Processes
// keep their old environment and find the new one in /proc/gvisor/spec_environ. Their
// TCP connections are cut.
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
	"sync"
	"syscall"
	"time"

	"holdfast"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/linux/deathsig"
	"holdfast/internal/platform/linux/proc"
)

// Errors that callers decide by; they come wrapped.
var (
	// ErrStranger means that the process is not the sandbox of the container.
	ErrStranger = errors.New("it is not a sandbox of runsc with this container")
	// ErrTorn means that an image is incomplete.
	ErrTorn = errors.New("the image is incomplete")
)

// Runtime is a runsc program and the directory of images for the containers that it
// starts. Its methods may be called from any goroutine.
type Runtime struct {
	Program string // runsc's absolute path
	Images  string // absolute path of a directory for this package only, mode 0700
}

// files are the files of a complete image (runsc, boot/restore.go).
var files = []string{"checkpoint.img", "pages.img", "pages_meta.img"}

// containerID is the form of the engines' container ids. It excludes paths.
var containerID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{12,64}$`) })

// lastWords is how much of the end of runsc's output is kept, in bytes.
const lastWords = 2 << 10

// Script returns the program to register with the engine as the runtime.
func (r Runtime) Script() ([]byte, error) {
	for _, p := range []string{r.Program, r.Images} {
		if !filepath.IsAbs(p) || strings.ContainsAny(p, "'\n") {
			return nil, fmt.Errorf("runtime script: %q is not an absolute path without quotes", p)
		}
	}
	return fmt.Appendf(nil, script, r.Program, r.Images), nil
}

// script gets runsc's arguments; the last one is the container. It does not start a container
// that is held: its sandbox exists, and runs nothing until RestoreHeld. It renames the image
// before the restore, so that an image is used once. A container whose image was used
// does not start again: an engine that repeats a start would otherwise start the container
// without its memory.
//
// Docker gives a container that joins another one's network the host name of that one, and
// gVisor keeps the name that it has read. The script puts the session's key there. The bundle's
// config.json is one line, in which the environment is before the host name.
//
// Docker sets two settings of the network only for a container with a network of its own (moby,
// daemon/oci_linux.go WithSysctls). gVisor has no use for them, but compares them at a restore. The
// script removes them, so that the image of such a container fits one that joins a network.
const script = `#!/bin/sh
# Written by holdfast. It runs runsc, sets the host name of a session, removes settings that
# depend on its network, restores a container for which an image is staged, and does not start
# one that is held.
runsc='%s' images='%s'
id= last= bundle= create=
for id; do
  [ "$last" = --bundle ] && bundle=$id
  [ "$id" = create ] && create=yes
  last=$id
done
if [ -n "$create" ] && [ -f "$bundle/config.json" ]; then
  sed -i '/"HOLDFAST_\(SESSION\|WARM\)=/{
s/"net\.ipv4\.ip_unprivileged_port_start":"[^"]*",\{0,1\}//
s/"net\.ipv4\.ping_group_range":"[^"]*",\{0,1\}//
s/\("sysctl":{[^{}]*\),}/\1}/
s/"sysctl":{},//
s/\("HOLDFAST_SESSION=\([a-z0-9-]*\)".*"hostname":"\)[^"]*"/\1\2"/
}' "$bundle/config.json" || exit 1
fi
staged=$images/$id
if [ -n "$id" ] && [ -f "$staged.held" ]; then
  for word; do
    case $word in
      start) exit 0 ;;
      delete) rm -f "$staged.held" ;;
    esac
  done
fi
if [ -z "$id" ] || ! [ -d "$staged" ]; then
  if [ -n "$id" ] && [ -d "$staged.used" ]; then
    for word; do
      if [ "$word" = start ]; then
        echo 'holdfast: a restore of this container was begun; it does not start without its memory' >&2
        exit 1
      fi
    done
  fi
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

// Install writes the script to path atomically. It leaves a file with the same
// content alone.
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

// Checkpoint saves the running container id, whose init is the process init, into the
// empty directory dir, and ends the container. After an error, or with ctx done, the
// container may still run, and dir is not a usable image. ErrStranger.
//
// Checkpoint does not wait for the container's end; the caller watches its init.
func (r Runtime) Checkpoint(ctx context.Context, id string, init int, dir string) error {
	return r.checkpoint(ctx, id, init, dir)
}

// Copy is Checkpoint of a container that goes on. It pauses meanwhile, and keeps its
// connections. After an error the container goes on, too.
func (r Runtime) Copy(ctx context.Context, id string, init int, dir string) error {
	return r.checkpoint(ctx, id, init, dir, "--leave-running")
}

func (r Runtime) checkpoint(ctx context.Context, id string, init int, dir string, options ...string) error {
	root, err := sandboxRoot(id, init)
	if err != nil {
		return fmt.Errorf("checkpoint of container %.12s: %w", id, err)
	}
	args := append([]string{"--root=" + root, "checkpoint", "--image-path=" + dir, "--exclude-committed-zero-pages"}, options...)
	err = r.run(ctx, append(args, id)...)
	if err == nil {
		err = whole(dir)
	}
	if err != nil {
		return fmt.Errorf("checkpoint of container %.12s: %w", id, err)
	}
	return nil
}

// Size estimates the bytes of an image of the running container id, whose init is the
// process init. It adds up the sandbox's memory and the files with the changes to its
// file systems. ErrStranger.
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
			continue // it is closed by now, or another descriptor
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
		return 0, fmt.Errorf("size of container %.12s: process %d has no sandbox memory", id, init)
	}
	return total, nil
}

// The names of a sandbox's memory (runsc/boot/loader.go) and of the files with the
// changes to a file system (runsc/boot/vfs.go).
const (
	memoryFile = "memfd:runsc-memory"
	filesFile  = ".gvisor.filestore."
)

// run runs runsc. The end of its output is part of the error.
func (r Runtime) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, r.Program, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// A checkpoint ends with its agent, because the next agent may have taken the
	// container over. The sandbox completes what it has begun.
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
func sandboxRoot(id string, init int) (root string, err error) {
	_, root, err = sandbox(id, init)
	return root, err
}

// sandboxOptions returns the global options of runsc that the container was created with.
func sandboxOptions(id string, init int) (options []string, err error) {
	args, _, err := sandbox(id, init)
	for _, a := range args[min(1, len(args)):] {
		if a == "boot" {
			break
		}
		if !strings.Contains(a, "-fd=") { // a descriptor of the sandbox
			options = append(options, a)
		}
	}
	return options, err
}

// sandbox returns the command line of the container's sandbox, and runsc's root.
func sandbox(id string, init int) (args []string, root string, err error) {
	if !containerID().MatchString(id) {
		return nil, "", fmt.Errorf("%q is not a container's id: %w", id, ErrStranger)
	}
	if args, err = proc.Host.Cmdline(init); err != nil {
		return nil, "", err
	}
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, "--root="); ok {
			root = v
		}
	}
	if len(args) == 0 || args[0] != "runsc-sandbox" || root == "" || !slices.Contains(args, id) {
		return nil, "", fmt.Errorf("process %d: %w", init, ErrStranger)
	}
	return args, root, nil
}

// whole checks that dir has all files of an image.
func whole(dir string) error {
	for _, name := range files {
		fi, err := os.Lstat(filepath.Join(dir, name))
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrTorn, err)
		case !fi.Mode().IsRegular():
			return fmt.Errorf("%w: %s is not a file", ErrTorn, name)
		}
	}
	return nil
}

// Link makes another name for the image in from: a directory to, which must not exist, on the
// same file system. The files are the same, and runsc only reads them. ErrTorn.
func Link(from, to string) error {
	err := whole(from)
	if err == nil {
		err = os.Mkdir(to, 0o700)
	}
	for _, name := range files {
		if err == nil {
			err = os.Link(filepath.Join(from, name), filepath.Join(to, name))
		}
	}
	if err != nil {
		return fmt.Errorf("link an image: %w", err)
	}
	return nil
}

// Stage makes the first start of container id, which is created and not started, a
// restore from the image in dir. It moves dir, which has to be on the file system of
// Images. ErrTorn.
func (r Runtime) Stage(id, dir string) error {
	if !containerID().MatchString(id) {
		return fmt.Errorf("stage an image: %q is not a container's id", id)
	}
	if err := whole(dir); err != nil {
		return fmt.Errorf("stage an image for container %.12s: %w", id, err)
	}
	if err := os.Rename(dir, filepath.Join(r.Images, id)); err != nil {
		return fmt.Errorf("stage an image for container %.12s: %w", id, err)
	}
	return nil
}

// Used reports whether a start of container id has used its image.
func (r Runtime) Used(id string) bool {
	_, err := os.Lstat(r.used(id))
	return err == nil
}

func (r Runtime) used(id string) string { return filepath.Join(r.Images, id+".used") }

// Restage moves the image of container from, used or not, to container to, which is
// created and not started. It is for a restore that was interrupted. No process of from
// may run.
func (r Runtime) Restage(from, to string) error {
	if !containerID().MatchString(from) {
		return fmt.Errorf("stage an image again: %q is not a container's id", from)
	}
	dir := filepath.Join(r.Images, from)
	if r.Used(from) {
		dir = r.used(from)
	}
	return r.Stage(to, dir)
}

// Hold makes the engine's start of a created container leave its sandbox waiting for
// RestoreHeld. It holds until Unstage, or the end of the container.
func (r Runtime) Hold(id string) error {
	if !containerID().MatchString(id) {
		return fmt.Errorf("hold a container: %q is not a container's id", id)
	}
	if err := os.WriteFile(r.held(id), nil, 0o600); err != nil {
		return fmt.Errorf("hold container %.12s: %w", id, err)
	}
	return nil
}

func (r Runtime) held(id string) string { return filepath.Join(r.Images, id+".held") }

// RestoreHeld restores a container that is held from the image that is staged for it. init is
// the process that the engine reports for it. After an error the container is to be killed;
// Restage can then give the image to another one.
func (r Runtime) RestoreHeld(ctx context.Context, id string, init int) error {
	options, err := sandboxOptions(id, init)
	if err == nil {
		err = os.Rename(filepath.Join(r.Images, id), r.used(id))
	}
	if err == nil {
		err = r.run(ctx, append(options, "restore", "--detach", "--image-path="+r.used(id), id)...)
	}
	if err != nil {
		return fmt.Errorf("restore of container %.12s: %w", id, err)
	}
	return nil
}

// Unstage removes the image of container id, after the container was restored or when it
// will not be.
func (r Runtime) Unstage(id string) error {
	if !containerID().MatchString(id) {
		return fmt.Errorf("unstage an image: %q is not a container's id", id)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(r.Images, id)), os.RemoveAll(r.used(id)), os.RemoveAll(r.held(id))); err != nil {
		return fmt.Errorf("remove the image of container %.12s: %w", id, err)
	}
	return nil
}

// Sweep removes all staged images. It is for the time after a crash, before the first
// Stage.
func (r Runtime) Sweep() error {
	entries, err := os.ReadDir(r.Images)
	if err != nil {
		return fmt.Errorf("sweep staged images: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if fi, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), ".held") && time.Since(fi.ModTime()) < heldAge {
			continue
		}
		errs = append(errs, os.RemoveAll(filepath.Join(r.Images, e.Name())))
	}
	return errors.Join(errs...)
}

// heldAge is how long Sweep leaves a held container to its agent, which may be another one with
// the same engine. Its start follows at once.
const heldAge = time.Minute

// Check verifies what the methods need. The error has a hint.
func (r Runtime) Check() error {
	if fi, err := os.Stat(r.Program); err != nil || fi.Mode()&0o111 == 0 {
		return holdfast.WithHint(fmt.Errorf("runsc: %s is not a program", r.Program), "docs/untrusted-code.md says how to install it")
	}
	if fi, err := os.Stat(r.Images); err != nil || !fi.IsDir() || fi.Mode().Perm()&0o077 != 0 {
		return holdfast.WithHint(fmt.Errorf("runsc: %s is not a directory that only its owner can read", r.Images), "it holds the memory of sessions: mkdir -m 0700")
	}
	return nil
}
