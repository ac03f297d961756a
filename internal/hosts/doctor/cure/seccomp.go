package cure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"holdfast/internal/platform/atomicfile"
)

// fadviseCalls returns the names of the system calls of posix_fadvise on all
// architectures.
func fadviseCalls() []string { return []string{"fadvise64", "fadvise64_64", "arm_fadvise64_64"} }

// Profile returns a seccomp profile in the engines' format: their default, except that
// posix_fadvise returns success and does nothing. The default is that of the library that
// Docker uses, in its newest form.
func Profile() ([]byte, error) {
	p := seccomp.DefaultProfile()
	calls := fadviseCalls()
	kept := p.Syscalls[:0]
	for _, s := range p.Syscalls {
		s.Names = slices.DeleteFunc(s.Names, func(n string) bool { return slices.Contains(calls, n) })
		if len(s.Names) > 0 {
			kept = append(kept, s)
		}
	}
	success := uint(0)
	p.Syscalls = append(kept, &seccomp.Syscall{
		LinuxSyscall: specs.LinuxSyscall{Names: calls, Action: specs.ActErrno, ErrnoRet: &success},
		Comment:      "holdfast doctor cure fadvise: return success and do nothing",
	})
	b, err := json.MarshalIndent(p, "", "\t")
	return append(b, '\n'), err
}

// TemplateEdit is the change that adds a seccomp profile to a template.
type TemplateEdit struct {
	File string // path of the configuration
	// Write writes the configuration with the profile in the template.
	Write func() error
	// Applied means that the template has this profile already.
	Applied bool
}

// FadviseTarget is the target of the profile. One of Template and Container is set.
type FadviseTarget struct {
	Template  string
	Container string // a container that Holdfast does not manage; only commands are shown
	File      string // absolute path of the profile
	// Edit prepares the change of the template. If it is nil, the change is only shown.
	Edit func(template, file string) (TemplateEdit, error)
}

// Fadvise writes the profile in which posix_fadvise does nothing, and adds it to a
// template, so that its next containers use it.
func Fadvise(t FadviseTarget) Cure {
	return Cure{Name: "fadvise", prepare: func(_ context.Context, _ Env, o Options) (prepared, error) {
		text, err := Profile()
		if err != nil {
			return prepared{}, err
		}
		if !filepath.IsAbs(t.File) {
			return prepared{}, fmt.Errorf("the profile's path %q is not absolute", t.File)
		}
		a := prepared{target: t.File, plan: Plan{
			Gain: "posix_fadvise returns success and does nothing: no call of a container with this profile empties the CPUs' batches any more",
			Risk: "pages that the program intended to drop stay in the page cache until the kernel needs the memory. Only new containers use the profile",
		}}
		was, err := os.ReadFile(t.File)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			a.plan.Does = append(a.plan.Does, "write the seccomp profile "+t.File)
		case err != nil:
			return prepared{}, err
		case !bytes.Equal(was, text):
			a.plan.Does = append(a.plan.Does, "write the seccomp profile "+t.File+", which exists with other content")
		}
		write := !bytes.Equal(was, text)
		var edit TemplateEdit
		if t.Template != "" {
			if edit, err = t.Edit(t.Template, t.File); err != nil {
				return prepared{}, err
			}
			a.target = "template " + t.Template
			a.plan.Shows = append(a.plan.Shows, "seccomp: "+t.File+"   # in the template "+t.Template+" of "+edit.File)
			if !edit.Applied {
				a.plan.Does = append(a.plan.Does, fmt.Sprintf("add the line seccomp: %s to the template %s in %s; the old file is kept as %s.before-cure", t.File, t.Template, edit.File, edit.File))
			}
			a.plan.Shows = append(a.plan.Shows,
				"holdfast agent stop --keep   # then start it again; containers keep running",
				"holdfast session replace --template "+t.Template+" …   # gives its sessions new containers")
		} else {
			name := t.Container
			if name == "" {
				name = "CONTAINER"
			}
			a.target = "container " + name
			a.plan.Shows = append(a.plan.Shows, "docker run --security-opt seccomp="+t.File+" …   # instead of "+name+"; in compose: security_opt: [\"seccomp="+t.File+"\"]")
		}
		a.plan.Shows = append(a.plan.Shows, "GLOG_drop_log_memory=false   # in its environment, if it logs by glog: that is enough then")
		if !write && (t.Template == "" || edit.Applied) {
			a.notes = append(a.notes, "everything is in place")
			return a, nil
		}
		if strings.HasPrefix(t.File, "/etc/") {
			a.root = "writing " + t.File
		}
		a.do = func(context.Context) (result, error) {
			if write {
				if err := writeFile(t.File, text); err != nil {
					return result{}, err
				}
			}
			if t.Template != "" && !edit.Applied {
				return result{}, edit.Write()
			}
			return result{}, nil
		}
		return a, nil
	}}
}

// writeFile replaces a file atomically.
func writeFile(name string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(name, text, 0o644)
}
