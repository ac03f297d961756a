package kubetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Daemon runs a program until the test's end, with its log in dir. After a failed test it
// shows the end of the log. It also ends a program that the test has stopped (SIGSTOP).
func Daemon(t *testing.T, dir, name string, args ...string) *os.Process {
	t.Helper()
	log, err := os.Create(filepath.Join(dir, filepath.Base(name)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // an error: it has ended
		_ = cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%s", filepath.Base(name), text[max(0, len(text)-6000):])
		}
	})
	return cmd.Process
}
