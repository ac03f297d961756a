package cure_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/proc"
)

// The profile is the default one, except for posix_fadvise.
func TestProfile(t *testing.T) {
	text, err := cure.Profile()
	if err != nil {
		t.Fatal(err)
	}
	var p struct {
		DefaultAction string
		Syscalls      []struct {
			Names    []string
			Action   string
			ErrnoRet *int
		}
	}
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	allowed, nothing := 0, 0
	for _, s := range p.Syscalls {
		if slices.Contains(s.Names, "fadvise64") {
			nothing++
			if s.Action != "SCMP_ACT_ERRNO" || s.ErrnoRet == nil || *s.ErrnoRet != 0 || len(s.Names) != 3 {
				t.Errorf("%+v", s)
			}
		} else if s.Action == "SCMP_ACT_ALLOW" {
			allowed += len(s.Names)
		}
	}
	if p.DefaultAction != "SCMP_ACT_ERRNO" || nothing != 1 || allowed < 300 {
		t.Errorf("default %s, %d rules for fadvise64, %d calls allowed", p.DefaultAction, nothing, allowed)
	}
}

// The profile is written, and the template is edited once.
func TestFadvise(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sub", "p.json")
	given := 0
	target := cure.FadviseTarget{Template: "web", File: file, Edit: func(template, f string) (cure.TemplateEdit, error) {
		if template != "web" || f != file {
			t.Errorf("edit of %s, %s", template, f)
		}
		return cure.TemplateEdit{File: "holdfast.yaml", Applied: given > 0, Write: func() error { given++; return nil }}, nil
	}}
	e := env(t)
	r, err := cure.Fadvise(target).Run(t.Context(), e, cure.Options{})
	if _, none := os.Stat(file); err != nil || none == nil || given > 0 || len(r.Plan.Does) != 2 {
		t.Fatalf("dry run: %+v, %v", r, err)
	}
	if !strings.Contains(strings.Join(r.Plan.Shows, "\n"), "GLOG_drop_log_memory=false") {
		t.Errorf("shown commands: %q", r.Plan.Shows)
	}
	for range 2 {
		apply(t, e, cure.Fadvise(target))
	}
	want, err := cure.Profile()
	if got, e := os.ReadFile(file); err != nil || e != nil || string(got) != string(want) || given != 1 {
		t.Errorf("template edited %d times, %v, %v", given, err, e)
	}
	fi, err := os.Stat(file)
	if err != nil || fi.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	other, err := cure.Fadvise(cure.FadviseTarget{Container: "db-1", File: file}).Run(t.Context(), e, cure.Options{})
	if err != nil || !strings.Contains(strings.Join(other.Plan.Shows, "\n"), "docker run --security-opt seccomp="+file) {
		t.Errorf("for another container: %+v, %v", other, err)
	}
}

// sysctls returns a host with settings in a directory.
func sysctls(t *testing.T) (cure.Env, func(value string) string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "sys/net/netfilter/nf_conntrack_max")
	thp := filepath.Join(dir, "kernel/mm/transparent_hugepage/defrag")
	for name, text := range map[string]string{file: "1000\n", thp: "always [madvise] never\n"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e := cure.Env{Host: probe.Host{Proc: proc.FS(dir), Sys: dir}}
	return e, func(value string) string {
		if value != "" {
			if err := os.WriteFile(file, []byte(value), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
}

// A setting is raised on request and restored to its first value, however often it was
// raised.
func TestSysctl(t *testing.T) {
	const name = "net.netfilter.nf_conntrack_max"
	e, value := sysctls(t)
	notes := filepath.Join(t.TempDir(), "notes")
	run := func(c cure.Cure, apply bool) error {
		_, err := c.Run(t.Context(), e, cure.Options{Apply: apply})
		return err
	}
	if err := run(cure.SysctlUndo(name, notes), true); !errors.Is(err, cure.ErrNothing) {
		t.Errorf("undo before a change: %v", err)
	}
	if err := run(cure.Sysctl(name, notes), false); err != nil || value("") != "1000" {
		t.Errorf("dry run: %s, %v", value(""), err)
	}
	if err := run(cure.Sysctl(name, notes), true); err != nil || value("") != "2000" {
		t.Errorf("raised: %s, %v", value(""), err)
	}
	if err := run(cure.Sysctl(name+"=3000", notes), true); err != nil || value("") != "3000" {
		t.Errorf("raised again: %s, %v", value(""), err)
	}
	for _, bad := range []string{"=10", "=-1", "=x", "=", "=99999999999"} {
		if err := run(cure.Sysctl(name+bad, notes), true); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
	value("5000")
	if err := run(cure.SysctlUndo(name, notes), true); err == nil || value("") != "5000" {
		t.Errorf("undo of another program's change: %v", err)
	}
	value("3000")
	if err := run(cure.SysctlUndo(name, notes), true); err != nil || value("") != "1000" {
		t.Errorf("after the undo: %s, %v", value(""), err)
	}
	if err := run(cure.SysctlUndo(name, notes), true); !errors.Is(err, cure.ErrNothing) {
		t.Errorf("second undo: %v", err)
	}
	r, err := cure.Sysctl("transparent_hugepage.defrag", notes).Run(t.Context(), e, cure.Options{})
	if err != nil || len(r.Plan.Does) != 1 || !strings.Contains(r.Plan.Does[0], "write defer to") || !strings.Contains(r.Plan.Does[0], "currently madvise") {
		t.Errorf("a setting that is a word: %+v, %v", r, err)
	}
}

// The journal survives a torn line, lists the newest cures first, and marks those that
// have not ended.
func TestJournal(t *testing.T) {
	j := cure.Journal{Path: filepath.Join(t.TempDir(), "sub", cure.FileName)}
	if list, err := j.List(0); err != nil || len(list) != 0 {
		t.Errorf("without a file: %v, %v", list, err)
	}
	e, _ := sysctls(t)
	e.Journal = j
	notes := filepath.Join(t.TempDir(), "notes")
	for _, v := range []string{"=2000", "=3000"} {
		if _, err := cure.Sysctl("net.netfilter.nf_conntrack_max"+v, notes).Run(context.Background(), e, cure.Options{Apply: true}); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(j.Path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString(`{"ended":false,"cure":"torn`)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(j.Path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString("\n" + `{"ended":false,"cure":"memcg","target":"/docker","at":"2026-01-01T00:00:00Z","applied":true}` + "\n")
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	list, err := j.List(0)
	if err != nil || len(list) != 3 || list[0].Cure != "memcg" || list[0].Error == "" || list[1].Error != "" || list[1].Figures[0].After != 3000 {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := j.List(1); err != nil || len(list) != 1 || list[0].Cure != "memcg" {
		t.Errorf("one: %+v, %v", list, err)
	}
	if _, err := j.List(-1); err == nil {
		t.Error("a limit of -1 is accepted")
	}
}
