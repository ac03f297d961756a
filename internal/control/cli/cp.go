package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/filetree"
)

// copying is a call of `session cp`.
type copying struct {
	owners bool // -a
	follow bool // -L
	quiet  bool
}

func (a *app) sessionCp() *cobra.Command {
	var q copying
	cmd := &cobra.Command{
		Use:   "cp {KEY:SOURCE DEST|- | SOURCE|- KEY:DEST}",
		Short: "Copy files between a session and this host",
		Long: "Copy files and directories between a session's container and this host, with the rules of `docker cp`:\n\n" +
			"  SOURCE is a file:      DEST is the new file, or a directory that gets it\n" +
			"  SOURCE is a directory: DEST is made and gets its content; if DEST exists, it gets the directory\n" +
			"  SOURCE ends with /.:   DEST gets the content of the directory SOURCE\n" +
			"  DEST ends with /:      DEST has to be a directory, unless SOURCE is one\n" +
			"  -:                     a tar archive, from the input or to the output\n\n" +
			"The directory above DEST has to exist. Paths of a container begin at its root. A path of this host with a colon begins with\n" +
			"/ or ./. Files in the container belong to its root user, files here to the caller, unless -a keeps the ids. A file appears\n" +
			"when it is complete. Devices and sockets are skipped.",
		Example: "  holdfast session cp alice:/var/log ./logs\n  holdfast session cp ./site/. alice:/www\n" +
			"  holdfast session cp alice:/etc - | tar -t\n  tar -c -C src . | holdfast session cp - alice:/src",
		Args: args(2, 2, "a source and a destination"),
		RunE: func(cmd *cobra.Command, words []string) error {
			from, to := isRemoteFile(words[0]), isRemoteFile(words[1])
			if from == to {
				return usage(cmd, errors.New("one of source and destination is KEY:PATH, and the other a path of this host or -"))
			}
			return a.with(cmd, noLimit, func(ctx context.Context, c *client.Client) error {
				if from {
					return a.copyFrom(ctx, c, q, words[0], words[1])
				}
				return a.copyTo(ctx, c, q, words[0], words[1])
			})
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&q.owners, "archive", "a", false, "keep user and group ids")
	f.BoolVarP(&q.follow, "follow-link", "L", false, "copy the file that the link SOURCE leads to")
	f.BoolVarP(&q.quiet, "quiet", "q", false, "show no progress and no result")
	return cmd
}

// isRemoteFile reports whether an argument is KEY:PATH. One that begins with / or . is a path of
// this host.
func isRemoteFile(arg string) bool {
	return !strings.HasPrefix(arg, "/") && !strings.HasPrefix(arg, ".") && strings.Contains(arg, ":")
}

// base is path.Base of a path that may end with "/.".
func base(p string) string { return path.Base(path.Clean(p)) }

// wantsContent reports whether a source is the content of a directory.
func wantsContent(p string) bool { return p == "." || strings.HasSuffix(p, "/.") }

// plan says where a copy goes: which directory gets the archive, and the name of its first
// file in it, "." for that directory itself.
type plan struct{ dir, name string }

// destination is where a copy goes.
type destination struct {
	path   string
	real   string // without links, if it exists
	exists bool
	isDir  bool
}

// planCopy applies the rules of docker cp.
func planCopy(source string, sourceIsDir bool, to destination, split func(string) (dir, name string)) (plan, error) {
	slash := strings.HasSuffix(to.path, "/")
	switch {
	case to.exists && to.isDir && sourceIsDir && wantsContent(source):
		return plan{to.path, "."}, nil
	case to.exists && to.isDir:
		return plan{to.path, base(source)}, nil
	case to.exists && sourceIsDir:
		return plan{}, &exitError{fmt.Errorf("%s is a file: a directory cannot be copied there", clean(to.path)), exitFailed, ""}
	case slash && !sourceIsDir:
		return plan{}, &exitError{fmt.Errorf("there is no directory %s", clean(to.path)), exitNotFound, "make it, or leave the last / out"}
	}
	p := to.path
	if to.exists && to.real != "" {
		p = to.real
	}
	dir, name := split(p)
	return plan{dir, name}, nil
}

// copyFrom copies from a container.
func (a *app) copyFrom(ctx context.Context, c *client.Client, q copying, source, dest string) error {
	from, err := remoteFileOf(source)
	if err != nil {
		return err
	}
	about, err := c.Stat(ctx, from.key, from.path, q.follow || strings.HasSuffix(from.path, "/.") || strings.HasSuffix(from.path, "/"))
	if err != nil {
		return err
	}
	remote := from.path
	if q.follow {
		remote = about.Path
		if wantsContent(from.path) {
			remote += "/."
		}
	}
	if dest == "-" {
		if _, ok := terminal(a.ui.out); ok {
			return &exitError{errors.New("the output is a terminal: an archive is not printed there"), exitUsage, "redirect the output"}
		}
		return c.PackFiles(ctx, from.key, remote, a.ui.out)
	}
	p, err := planCopy(from.path, about.Type == holdfast.Directory, localDestination(dest), func(p string) (string, string) {
		return filepath.Dir(filepath.Clean(p)), filepath.Base(p)
	})
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(p.dir)
	if err != nil {
		return fmt.Errorf("copying to %s: %w", clean(dest), err)
	}
	defer root.Close()
	seen, done := a.meter(q, "copying "+clean(source))
	got, err := receive(ctx, c, from.key, remote, root, filetree.Unpacking{
		Owner: q.localOwner(), Seen: seen, Rename: renaming(packedName(remote), p.name),
	})
	done()
	return a.copied(q, got, err, dest)
}

// packedName is the name of the first file in the archive of a path.
func packedName(remote string) string {
	if remote == "/" || strings.HasSuffix(remote, "/.") {
		return "."
	}
	return path.Base(remote)
}

// renaming returns the function that gives an archive's files their new names.
func renaming(packed, name string) func(string) string {
	if name == "/" {
		name = "."
	}
	return func(n string) string {
		rest := n
		if packed != "." {
			rest = strings.TrimPrefix(strings.TrimPrefix(n, packed), "/")
		}
		return path.Join(name, rest)
	}
}

func localDestination(dest string) destination {
	d := destination{path: dest}
	if fi, err := os.Stat(dest); err == nil {
		d.exists, d.isDir = true, fi.IsDir()
		d.real, _ = filepath.EvalSymlinks(dest) // "" if it changes now
	}
	return d
}

// localOwner keeps the ids of an archive for -a.
func (q copying) localOwner() func(int, int) (int, int) {
	if !q.owners {
		return nil
	}
	return func(uid, gid int) (int, int) { return uid, gid }
}

// copyTo copies to a container.
func (a *app) copyTo(ctx context.Context, c *client.Client, q copying, source, dest string) error {
	to, err := remoteFileOf(dest)
	if err != nil {
		return err
	}
	o := holdfast.UnpackFiles{Owners: q.owners}
	d := destination{path: to.path}
	about, err := c.Stat(ctx, to.key, to.path, true)
	switch {
	case err == nil:
		d.exists, d.isDir, d.real = true, about.Type == holdfast.Directory, about.Path
	case !isMissing(err):
		return err
	}
	seen, done := a.meter(q, "copying "+clean(source))
	if source == "-" {
		got, err := c.UnpackFiles(ctx, to.key, to.path, o, &counting{a.ui.in, seen})
		done()
		return a.copied(q, got, err, dest)
	}
	got, err := a.send(ctx, c, q, source, to, d, o, seen)
	done()
	return a.copied(q, got, err, dest)
}

// send copies a local file or directory.
func (a *app) send(ctx context.Context, c *client.Client, q copying, source string, to remoteFile, d destination, o holdfast.UnpackFiles, seen func(int)) (out holdfast.Unpacked, err error) {
	f, isDir, err := openSource(source, q.follow)
	if err != nil {
		return out, err
	}
	defer f.Close()
	name := source
	if !wantsContent(source) {
		if name, err = filepath.Abs(source); err != nil {
			return out, err
		}
	}
	p, err := planCopy(name, isDir, d, func(p string) (string, string) { return path.Dir(path.Clean(p)), base(p) })
	if err != nil {
		return out, err
	}
	if p.name == "/" {
		p.name = "."
	}
	r, w := io.Pipe()
	defer r.Close()
	packed := make(chan error, 1)
	go func() {
		err := pack(ctx, w, f, p.name, filetree.Packing{Seen: seen})
		w.CloseWithError(err)
		packed <- err
	}()
	out, err = c.UnpackFiles(ctx, to.key, p.dir, o, r)
	r.CloseWithError(io.ErrClosedPipe)
	if local := <-packed; err == nil && local != nil {
		err = local
	}
	return out, err
}

// openSource opens a local file without reading it.
func openSource(source string, follow bool) (*os.File, bool, error) {
	fi, err := os.Lstat(source)
	if err == nil && (follow || wantsContent(source) || strings.HasSuffix(source, "/")) {
		fi, err = os.Stat(source)
	}
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, false, &exitError{fmt.Errorf("there is no file %s", clean(source)), exitNotFound, "a path of a session is KEY:PATH"}
		}
		return nil, false, err
	}
	f, err := openPath(source, fi)
	return f, fi.IsDir(), err
}

// counting counts the bytes that are read.
type counting struct {
	io.Reader
	seen func(int)
}

func (r *counting) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.seen(n)
	return n, err
}

// meter shows the progress of a copy on a terminal.
func (a *app) meter(q copying, what string) (seen func(int), done func()) {
	f, tty := terminal(a.ui.err)
	if q.quiet || a.ui.json || !tty {
		return func(int) {}, func() {}
	}
	var total atomic.Int64
	end := redraw(func() { fmt.Fprintf(f, "\r\x1b[K%s… %.1f MB", what, float64(total.Load())/1e6) })
	return func(n int) { total.Add(int64(n)) }, func() {
		end()
		fmt.Fprint(f, "\r\x1b[K")
	}
}

// copied prints the result.
func (a *app) copied(q copying, got holdfast.Unpacked, err error, dest string) error {
	if err == nil && got.Skipped > 0 {
		a.ui.note("%s skipped: devices are not copied", count(int(got.Skipped), "file"))
	}
	if q.quiet && err == nil && !a.ui.json {
		return nil
	}
	return show(a.ui, got, err, func(w io.Writer, u holdfast.Unpacked) {
		fmt.Fprintf(w, "copied %s to %s: %s\n", count(int(u.Entries), "file"), clean(dest), count(int(u.Bytes), "byte"))
	})
}
