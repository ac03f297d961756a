package drill

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/tasks"
)

// hungMount is a program whose threads wait for a file system of which no server answers, in state
// D. The mount is in a mount namespace of its own, so no other process can wait for it, and it ends
// with the program: without a server, the kernel ends all requests with an error.
func hungMount() Drill {
	return Drill{
		Name: "hung-mount", Short: "tasks that wait for a file system whose server does not answer", Rule: "stuck-tasks",
		Size: 8, MaxSize: 200, Unit: "tasks",
		parts: []part{{name: "waiter", mounts: true, work: func(ctx context.Context, t Task, ready func()) error {
			dir := filepath.Join(t.Dir, "mount")
			server, err := mountWithoutServer(dir)
			if err != nil {
				return err
			}
			var waiting errgroup.Group
			for range t.Size {
				waiting.Go(func() error {
					var f unix.Statfs_t
					_ = unix.Statfs(dir, &f) // it fails at the end, when nothing can serve it
					return nil
				})
			}
			err = waitStuck(ctx, t.Size)
			if err == nil {
				ready()
				<-ctx.Done()
			}
			if closed := unix.Close(server); err == nil {
				err = closed
			}
			_ = waiting.Wait() // it has no error
			return err
		}}},
	}
}

// mountWithoutServer mounts a FUSE file system that nothing serves (fuse(4)). Closing the file ends
// all its requests.
func mountWithoutServer(dir string) (int, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, err
	}
	server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open /dev/fuse: %w", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server)
	if err := unix.Mount("files.example", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		_ = unix.Close(server) // nothing uses it
		return 0, fmt.Errorf("mount a file system: %w", err)
	}
	return server, nil
}

// waitStuck waits until n threads of this process are in state D.
func waitStuck(ctx context.Context, n int) error {
	for {
		stuck := 0
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range threads {
			text, err := os.ReadFile("/proc/self/task/" + t.Name() + "/stat")
			if s, err2 := proc.ParseStat(text); err == nil && err2 == nil && s.State == 'D' {
				stuck++
			}
		}
		if stuck >= n {
			return nil
		}
		if tasks.Sleep(ctx, 20*time.Millisecond) != nil {
			return ctx.Err()
		}
	}
}
