package replace

import (
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

// command runs the user's command for a node.
func (x *run) command(ctx context.Context, name string) error {
	var n kube.Node
	err := x.drain.patiently(ctx, func() (err error) { n, err = x.client.Node(ctx, name); return err })
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, x.conf.CommandLimit)
	defer cancel()
	words := strings.NewReplacer("{node}", name, "{provider-id}", n.Spec.ProviderID)
	args := make([]string, len(x.conf.Command))
	for i, a := range x.conf.Command {
		args[i] = words.Replace(a)
	}
	x.tell(name, "running %s", strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "HOLDFAST_NODE="+name, "HOLDFAST_PROVIDER_ID="+n.Spec.ProviderID)
	cmd.Stdout, cmd.Stderr = x.conf.Output, x.conf.Output
	if x.conf.Output == nil {
		cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
	}
	// In a group of its own, so that all that it has started is stopped with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = endLimit
	err = cmd.Run()
	if ctx.Err() != nil && cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // fails if no process is left
	}
	if ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s has not ended within %v", args[0], x.conf.CommandLimit)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}
