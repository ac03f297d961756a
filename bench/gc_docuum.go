package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a run of docuum.
const (
	docuumLimit = 5 * time.Minute
	docuumLook  = 50 * time.Millisecond
)

// docuum collects with the real docuum until the disk is under the low mark. docuum's
// threshold is on the size of all images and not on the disk (its README,
// "--threshold"). It begins with one pass.
func (x *gcBench) docuum(ctx context.Context, path string, low int64) error {
	ctx, cancel := context.WithTimeout(ctx, docuumLimit)
	defer cancel()
	stay := int64(x.o.Images) * int64(x.o.Files) * fileSize / 5 // the same sizes as in round
	base, _, err := x.engine.InspectImage(ctx, gcBase)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, "--threshold", fmt.Sprintf("%d B", stay+base.Size))
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + x.dir, "DOCKER_HOST=" + x.lab.Host()}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	// docuum starts docker commands as children, which are killed with it.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(docuumLook)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return fmt.Errorf("docuum exited: %w\n%s", errors.Join(err, ctx.Err()), said.String())
		case <-tick.C:
		}
		if used, err := x.used(); err != nil || used <= low {
			cancel()
			<-ended // it was killed
			return err
		}
	}
}
