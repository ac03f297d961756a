package replace

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"holdfast/internal/hosts/kube"
)

// endLimit is how long a stopped command may take to exit by itself.
const endLimit = 10 * time.Second

// maxOutput is how much of a command's output is in the report, in bytes.
const maxOutput = 4 << 10

// tail keeps the end of an output.
type tail struct{ b []byte }

func (t *tail) Write(b []byte) (int, error) {
	t.b = append(t.b, b...)
	t.b = bytes.Clone(t.b[max(0, len(t.b)-maxOutput):])
	return len(b), nil
}

// command runs one of the user's commands for the node.
func (t *turn) command(ctx context.Context, words []string) error {
	var n kube.Node
	err := t.drain.patiently(ctx, func() (err error) { n, err = t.client.Node(ctx, t.name); return err })
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, t.conf.CommandLimit)
	defer cancel()
	m, _ := t.mark(t.name)
	fill := strings.NewReplacer("{node}", t.name, "{provider-id}", n.Spec.ProviderID, "{new-node}", m.New)
	args := make([]string, len(words))
	for i, a := range words {
		args[i] = fill.Replace(a)
	}
	t.tell(t.name, "running %s", strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "HOLDFAST_NODE="+t.name, "HOLDFAST_PROVIDER_ID="+n.Spec.ProviderID, "HOLDFAST_NEW_NODE="+m.New)
	var end tail
	out := io.MultiWriter(&end, cmp.Or(t.conf.Output, io.Discard))
	cmd.Stdout, cmd.Stderr = out, out
	// In a group of its own, so that all that it has started is stopped with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = endLimit
	err = cmd.Run()
	t.output = strings.ToValidUTF8(string(end.b), "\uFFFD")
	if ctx.Err() != nil && cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // fails if no process is left
	}
	if ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s has not ended within %v", args[0], t.conf.CommandLimit)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}
