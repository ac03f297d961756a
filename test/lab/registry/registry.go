// Package registry runs a real image registry on loopback for tests and benches (Debian's
// docker-registry, which is CNCF distribution). It has images of random layers, and a proxy
// with faults. Engines allow plain HTTP to 127.0.0.0/8, so they need no configuration.
package registry

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/test/lab"
)

// Options are the options of a Registry. The zero value needs no authentication.
type Options struct {
	// User and Password are required if User is not "".
	User, Password string
	// Tokens, if it is not nil, decides about logins instead. User and Password are then those
	// of a push.
	Tokens *Tokens
	// Dir is the parent of its directory; "" is TMPDIR or /tmp.
	Dir string
}

// Registry is a running registry. Any goroutine may call its methods.
type Registry struct {
	host  string
	dir   string
	cmd   *exec.Cmd
	ended chan struct{} // closed when it is reaped
}

// Start starts a registry on a free port of 127.0.0.1 and returns when it
// answers.
func Start(ctx context.Context, o Options) (*Registry, error) {
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		return nil, holdfast.WithHint(errors.New("no image registry is installed (docker-registry not found)"), "apt-get install docker-registry")
	}
	dir, err := os.MkdirTemp(o.Dir, "registry-")
	if err != nil {
		return nil, err
	}
	r := &Registry{dir: dir, ended: make(chan struct{})}
	if err := r.start(ctx, program, o); err != nil {
		return nil, errors.Join(fmt.Errorf("start a registry: %w", err), r.Stop())
	}
	return r, nil
}

func (r *Registry) start(ctx context.Context, program string, o Options) error {
	host, err := lab.FreePort() // if another process takes it first, the registry exits at its start
	if err != nil {
		close(r.ended)
		return err
	}
	r.host = host
	if err := r.configure(o); err != nil {
		close(r.ended)
		return err
	}
	out, err := os.OpenFile(r.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		close(r.ended)
		return err
	}
	defer out.Close()
	cmd := exec.Command(program, "serve", filepath.Join(r.dir, "config.yml"))
	cmd.Env = []string{"PATH=/usr/bin:/bin", "OTEL_TRACES_EXPORTER=none"}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		close(r.ended)
		return err
	}
	r.cmd = cmd
	go func() {
		_ = cmd.Wait() // Stop ended it, or waitReady reports how it ended
		close(r.ended)
	}()
	return r.waitReady(ctx)
}

// configure writes the configuration
// (https://distribution.github.io/distribution/about/configuration/).
func (r *Registry) configure(o Options) error {
	config := fmt.Sprintf(`version: 0.1
log: {level: warn, accesslog: {disabled: false}}
storage: {filesystem: {rootdirectory: %q}, redirect: {disable: true}}
http: {addr: %q, relativeurls: true}
`, filepath.Join(r.dir, "data"), r.host)
	switch {
	case o.Tokens != nil:
		auth, err := o.Tokens.configure(filepath.Join(r.dir, "tokens.pem"))
		if err != nil {
			return err
		}
		config += auth
	case o.User != "":
		hash, err := bcrypt.GenerateFromPassword([]byte(o.Password), bcrypt.MinCost)
		if err != nil {
			return err
		}
		passwords := filepath.Join(r.dir, "htpasswd")
		if err := os.WriteFile(passwords, fmt.Appendf(nil, "%s:%s\n", o.User, hash), 0o600); err != nil {
			return err
		}
		config += fmt.Sprintf("auth: {htpasswd: {realm: test, path: %q}}\n", passwords)
	}
	return os.WriteFile(filepath.Join(r.dir, "config.yml"), []byte(config), 0o600)
}

func (r *Registry) waitReady(ctx context.Context) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.ended:
			log, _ := os.ReadFile(r.logFile())
			return fmt.Errorf("it ended: %s", log)
		case <-tick.C:
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.host+"/v2/", nil)
			if err != nil {
				return err
			}
			if res, err := client.Do(req); err == nil {
				return res.Body.Close()
			}
		}
	}
}

// Host returns the registry's host:port, with which the names of its images begin.
func (r *Registry) Host() string { return r.host }

func (r *Registry) logFile() string { return filepath.Join(r.dir, "registry.log") }

// Stop ends the registry and removes its data. It must be the last call.
func (r *Registry) Stop() error {
	var errs []error
	if r.cmd != nil {
		if err := r.cmd.Process.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
	}
	<-r.ended
	return errors.Join(append(errs, os.RemoveAll(r.dir))...)
}

// Access is one line of the registry's access log.
type Access struct {
	Method string
	Path   string
	Status int
	Bytes  int64 // of the body, as written to the connection
}

// Blob returns the digest of the requested blob, "" for another request.
func (a Access) Blob() string { return blobOf(a.Path) }

func blobOf(path string) string {
	_, digest, ok := strings.Cut(path, "/blobs/")
	if !ok || !strings.HasPrefix(digest, "sha256:") {
		return ""
	}
	return digest
}

// combined is a line in Apache's combined log format.
var combined = regexp.MustCompile(`"([A-Z]+) (\S+) HTTP/[0-9.]+" (\d{3}) (\d+) `)

// Accesses returns the completed requests so far.
func (r *Registry) Accesses() ([]Access, error) {
	f, err := os.Open(r.logFile())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Access
	for lines := bufio.NewScanner(f); lines.Scan(); {
		m := combined.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		status, _ := strconv.Atoi(m[3])        // digits
		n, _ := strconv.ParseInt(m[4], 10, 64) // digits
		out = append(out, Access{Method: m[1], Path: m[2], Status: status, Bytes: n})
	}
	return out, nil
}
