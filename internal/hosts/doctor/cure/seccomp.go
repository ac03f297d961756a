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

// fadviseCalls are the names of posix_fadvise among the system calls of all
// architectures.
func fadviseCalls() []string { return []string{"fadvise64", "fadvise64_64", "arm_fadvise64_64"} }

// Profile is a seccomp profile, as engines take it: their default, but that
// posix_fadvise returns success and does nothing. The default is that of the
// library from which Docker has its own, in its newest form.
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
		Comment:      "holdfast doctor cure fadvise: success, and nothing is done",
	})
	b, err := json.MarshalIndent(p, "", "\t")
	return append(b, '\n'), err
}

// TemplateEdit gives a template a seccomp profile.
type TemplateEdit struct {
	File string // the configuration's
	// Text is the file with the profile in the template; Write puts it in
	// place.
	Write func() error
	// Applied says that the template has just this profile already.
	Applied bool
}

// FadviseTarget says for whom the profile is. One of Template and Container is set.
type FadviseTarget struct {
	Template  string
	Container string // a container of somebody else's; only commands are shown
	File      string // where the profile is written, an absolute path
	// Give looks how the template gets it. nil: it is only shown.
	Edit func(template, file string) (TemplateEdit, error)
}

// Fadvise writes the profile in which posix_fadvise does nothing, and gives it to
// a template, so that its next containers have it.
func Fadvise(t FadviseTarget) Cure {
	return Cure{Name: "fadvise", prepare: func(_ context.Context, _ Env, o Options) (act, error) {
		text, err := Profile()
		if err != nil {
			return act{}, err
		}
		if !filepath.IsAbs(t.File) {
			return act{}, fmt.Errorf("the profile's path %q is not absolute", t.File)
		}
		a := act{target: t.File, plan: Plan{
			Gain: "posix_fadvise returns success and does nothing: no call of a container with this profile empties the CPUs' batches any more",
			Risk: "what the program meant to drop stays in the page cache until the kernel needs the memory. It works in containers that are made from now on",
		}}
		was, err := os.ReadFile(t.File)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			a.plan.Does = append(a.plan.Does, "write the seccomp profile "+t.File)
		case err != nil:
			return act{}, err
		case !bytes.Equal(was, text):
			a.plan.Does = append(a.plan.Does, "write the seccomp profile "+t.File+" anew, which is there and differs")
		}
		write := !bytes.Equal(was, text)
		var edit TemplateEdit
		if t.Template != "" {
			if edit, err = t.Edit(t.Template, t.File); err != nil {
				return act{}, err
			}
			a.target = "template " + t.Template
			a.plan.Shows = append(a.plan.Shows, "seccomp: "+t.File+"   # in the template "+t.Template+" of "+edit.File)
			if !edit.Applied {
				a.plan.Does = append(a.plan.Does, fmt.Sprintf("add the line seccomp: %s to the template %s in %s; the old file is kept as %s.before-cure", t.File, t.Template, edit.File, edit.File))
			}
			a.plan.Shows = append(a.plan.Shows,
				"holdfast agent stop --keep   # and start it again: containers live on",
				"holdfast session replace --template "+t.Template+" …   # its sessions get fresh containers")
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
			a.notes = append(a.notes, "all of it is in place")
			return a, nil
		}
		if o.Apply && os.Geteuid() != 0 && strings.HasPrefix(t.File, "/etc/") {
			return a, notRoot("writing " + t.File)
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

// writeFile writes a file whole or not at all.
func writeFile(name string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(name, text, 0o644)
}
