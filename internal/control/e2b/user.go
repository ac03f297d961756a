package e2b

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"holdfast"
	"holdfast/internal/control/api"
)

// account is a user of a container.
type account struct {
	name     string
	uid, gid int
	home     string
}

// account returns a user of a sandbox's container by its name or id; "" is the server's
// default. The root user exists without a list of users, too.
func (d *Server) account(ctx context.Context, s sandbox, name string) (account, error) {
	name = cmp.Or(name, d.o.User)
	for fields := range d.lines(ctx, s, "/etc/passwd") {
		if len(fields) < 6 || fields[0] != name && fields[2] != name {
			continue
		}
		uid, err1 := strconv.ParseUint(fields[2], 10, 31)
		gid, err2 := strconv.ParseUint(fields[3], 10, 31)
		if err := cmp.Or(err1, err2); err == nil {
			return account{fields[0], int(uid), int(gid), cmp.Or(fields[5], "/")}, nil
		}
	}
	switch id, err := strconv.ParseUint(name, 10, 31); {
	case name == "root":
		return account{"root", 0, 0, "/root"}, nil
	case err == nil:
		return account{name, int(id), int(id), "/"}, nil
	}
	return account{}, refuse(http.StatusUnauthorized, "the image has no user %q", name[:min(len(name), 64)])
}

// lines yields the fields of each line of a file of users or groups. A file that cannot be
// read has none.
func (d *Server) lines(ctx context.Context, s sandbox, path string) func(func([]string) bool) {
	return func(yield func([]string) bool) {
		var text limited
		_ = d.o.Agent.ReadFile(ctx, s.key(), path, 0, &text) // without the file there are no names
		for line := range strings.Lines(text.String()) {
			if !yield(strings.Split(strings.TrimSuffix(line, "\n"), ":")) {
				return
			}
		}
	}
}

// limited keeps the first bytes of a file of users.
type limited struct{ bytes.Buffer }

var errLarge = errors.New("the file is too large")

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxUserFile {
		return 0, errLarge
	}
	return l.Buffer.Write(p)
}

// names are the names of ids in a container.
type names struct{ users, groups map[int]string }

func (d *Server) names(ctx context.Context, s sandbox) names {
	read := func(path string) map[int]string {
		all := map[int]string{0: "root"}
		for fields := range d.lines(ctx, s, path) {
			if len(fields) < 3 {
				continue
			}
			if id, err := strconv.Atoi(fields[2]); err == nil {
				all[id] = fields[0]
			}
		}
		return all
	}
	return names{read("/etc/passwd"), read("/etc/group")}
}

func nameOf(names map[int]string, id int) string { return cmp.Or(names[id], strconv.Itoa(id)) }

// place is where a command runs: its directory, checked if the caller has named it.
func (d *Server) place(ctx context.Context, s sandbox, a account, dir string) (string, error) {
	named := dir != ""
	dir = join(a.home, cmp.Or(dir, a.home))
	f, err := d.o.Agent.Stat(ctx, s.key(), dir, true)
	switch {
	case err == nil && f.Type == holdfast.Directory:
		return dir, nil
	case !named && (err == nil || errors.Is(err, holdfast.ErrNotFound)):
		return "/", nil
	case hidden(err):
		return dir, nil
	case err == nil:
		return "", refuse(http.StatusBadRequest, "cwd: %q is no directory", dir)
	case errors.Is(err, holdfast.ErrNotFound) && d.lives(ctx, s):
		return "", refuse(http.StatusBadRequest, "cwd: %q does not exist", dir)
	}
	return "", err
}

// hidden reports that the files of a container cannot be seen from outside, such as those
// under gVisor. The API has one code for that and for a path that is not valid.
func hidden(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && e.Code == api.CodeBadRequest
}

// lives reports whether the session of a sandbox runs: the agent has one error for a
// missing file and a missing session.
func (d *Server) lives(ctx context.Context, s sandbox) bool {
	at, err := d.o.Agent.Session(ctx, s.key())
	return err == nil && at.State == holdfast.Ready
}

// program returns the command line of a caller. The SDKs run each command with bash; an
// image without bash has a shell that understands the same words.
func (d *Server) program(ctx context.Context, s sandbox, cmd string, args []string) []string {
	start := []string{cmd}
	if cmd == "/bin/bash" {
		switch _, err := d.o.Agent.Stat(ctx, s.key(), cmd, true); {
		case errors.Is(err, holdfast.ErrNotFound):
			start = []string{"/bin/sh"}
		case hidden(err): // a shell in the container looks
			start = []string{"/bin/sh", "-c", `if [ -x /bin/bash ]; then exec /bin/bash "$@"; fi; exec /bin/sh "$@"`, "sh"}
		}
	}
	return append(start, args...)
}

// environment is that of a command: the sandbox's, then that of the request.
func environment(s sandbox, a account, more map[string]string) ([]string, error) {
	all := map[string]string{"HOME": a.home, "USER": a.name, "LOGNAME": a.name, "E2B_SANDBOX": "true", "E2B_SANDBOX_ID": s.ID, "E2B_TEMPLATE_ID": s.Template}
	for _, from := range []map[string]string{s.Env, more} {
		for name, value := range from {
			if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
				return nil, refuse(http.StatusBadRequest, "%q is not a name of an environment variable, or its value has a zero byte", name)
			}
			all[name] = value
		}
	}
	list := make([]string, 0, len(all))
	for name, value := range all {
		list = append(list, fmt.Sprintf("%s=%s", name, value))
	}
	return list, nil
}
