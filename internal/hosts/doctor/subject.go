package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"holdfast"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/proc"
)

// Subject is a fact.Subject with the names that people use. Unknown values are empty.
type Subject struct {
	Container   string   `json:"container,omitempty"` // its name
	ContainerID string   `json:"container_id,omitempty"`
	Image       string   `json:"image,omitempty"`
	Session     string   `json:"session,omitempty"`  // the session that the container serves
	Template    string   `json:"template,omitempty"` // the template of a session's container or of a warm container
	Pod         *Pod     `json:"pod,omitempty"`      // in a Kubernetes cluster
	Cgroup      string   `json:"cgroup,omitempty"`
	Pid         int      `json:"pid,omitempty"`
	Command     string   `json:"command,omitempty"` // with arguments, if the process still runs
	Kernel      []string `json:"kernel,omitempty"`  // the innermost function first
	User        []string `json:"user,omitempty"`    // functions of the program, likewise
}

// Namer adds the names that people use to subjects.
type Namer struct {
	proc       proc.FS
	containers map[string]engine.Container // by id
}

// Names lists the engine's containers. If the engine does not answer, or if there is none
// (err may hold the reason), the Namer knows no names and the gap holds the reason.
func Names(ctx context.Context, from proc.FS, e Engine, err error) (Namer, *fact.Gap) {
	n := Namer{proc: from, containers: make(map[string]engine.Container)}
	if e == nil && err == nil {
		err = errors.New("no container engine was given")
	}
	if e != nil {
		ctx, cancel := context.WithTimeout(ctx, namesLimit)
		defer cancel()
		var list []engine.Container
		list, err = e.List(ctx, nil)
		for _, c := range list {
			n.containers[c.ID] = c
		}
	}
	if err != nil {
		return n, &fact.Gap{Probe: "engine", Sees: "names and images of containers", Why: err.Error(), Hint: probe.Hint(err)}
	}
	return n, nil
}

// maxShown bounds the names and command lines that are shown, in bytes.
const maxShown = 200

// short truncates untrusted text.
func short(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + "…"
}

func (n Namer) subject(s fact.Subject) *Subject {
	if s.Cgroup == "" && s.Pid == 0 && s.Command == "" && len(s.Kernel) == 0 {
		return nil
	}
	w := &Subject{Cgroup: s.Cgroup, Pid: s.Pid, Command: s.Command, Kernel: s.Kernel, User: s.User, ContainerID: fact.ContainerID(s.Cgroup)}
	if c, ok := n.containers[w.ContainerID]; ok {
		w.Container, w.Image = short(c.Name), short(c.Image)
		w.Session, w.Template = sessionOf(c)
	}
	w.Pod = n.pod(w.ContainerID, s.Cgroup)
	if s.Pid > 0 && !n.proc.Blocked(s.Pid) {
		if args, err := n.proc.Cmdline(s.Pid); err == nil && len(args) > 0 {
			w.Command = short(strings.Join(args, " "))
		}
	}
	return w
}

// Labels of the containers of sessions.
const (
	sessionLabel     = "holdfast.session"
	templateLabel    = "holdfast.template"
	identityDirLabel = "holdfast.identity-dir" // of a container that was warm: the directory with its session's identity
)

// maxIdentity bounds the file with a session's identity, in bytes.
const maxIdentity = 1 << 20

// sessionOf returns the session that a container serves, and its template. A container
// that was warm has no label with its session; a file that only root can write names the
// session. The session is "" while a warm container waits for one.
func sessionOf(c engine.Container) (session, template string) {
	template = short(c.Labels[templateLabel])
	if key := c.Labels[sessionLabel]; key != "" {
		return short(key), template
	}
	dir := c.Labels[identityDirLabel]
	if !filepath.IsAbs(dir) {
		return "", template
	}
	f, err := os.Open(filepath.Join(dir, "session.json"))
	if err != nil {
		return "", template
	}
	defer f.Close()
	var identity struct{ Session string }
	if json.NewDecoder(io.LimitReader(f, maxIdentity)).Decode(&identity) != nil {
		return "", template
	}
	if _, err := holdfast.ParseSessionKey(identity.Session); err != nil {
		return "", template
	}
	return identity.Session, template
}

// Name adds names to a finding and to the commands of its cures.
func (n Namer) Name(f rule.Finding) Finding {
	named := Finding{Finding: f, Subject: n.subject(f.Culprit)}
	for _, v := range f.Victims {
		if w := n.subject(v); w != nil {
			named.Against = append(named.Against, *w)
		}
	}
	if w := named.Subject; w != nil && w.Pod == nil && safe(w.Container) { // in pods, many containers share a name
		cures := make([]rule.Cure, len(f.Cures))
		for i, c := range f.Cures {
			c.Command = strings.ReplaceAll(c.Command, "CONTAINER", w.Container)
			cures[i] = c
		}
		named.Cures = cures
	}
	return named
}

// safe reports whether a name is safe to paste into a shell command: it has only
// characters that engines allow in names of containers.
func safe(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == "" && name[0] != '-'
}

// Program returns the path through the program from outside inwards, without the
// functions that start a program or a thread.
func (s Subject) Program() []string {
	path := slices.Clone(s.User)
	slices.Reverse(path)
	for len(path) > 1 && starts(path[0]) {
		path = path[1:]
	}
	return path
}

// starts reports whether a function is the outermost one of every program or thread:
// of glibc, musl, C++ and Go.
func starts(name string) bool {
	switch name {
	case "_start", "__libc_start_call_main", "start_thread", "clone", "clone3", "__clone", "__clone3", "execute_native_thread_routine",
		"runtime.goexit", "runtime.main", "runtime.rt0_go":
		return true
	}
	return strings.HasPrefix(name, "__libc_start_main") || strings.HasPrefix(name, "[libc.so") || strings.HasPrefix(name, "[ld-musl")
}
