package uts

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

func TestHostnameOfAnother(t *testing.T) {
	if os.Geteuid() != 0 && testing.Short() {
		t.Skip("-short without root: namespaces need root")
	}
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "echo; read x; cat /proc/sys/kernel/hostname")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUTS}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := SetHostname(cmd.Process.Pid, "renamed"); err != nil {
		t.Error(err)
	}
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil || strings.TrimSpace(out.String()) != "renamed" {
		t.Errorf("its host name is %q, %v", out.String(), err)
	}
	if err := SetHostname(cmd.Process.Pid, "gone"); err == nil {
		t.Error("a process that is gone has a new host name")
	}
	if err := SetHostname(os.Getpid(), "ours"); err == nil {
		t.Error("this process's own host name is set")
	}
	if now, err := os.Hostname(); err != nil || now != own {
		t.Errorf("this host is called %q, %v; it was %q", now, err, own)
	}
}
