package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/bench"
	"holdfast/bench/rig"
	"holdfast/internal/platform/store/etcd"
	"holdfast/internal/sessions/fleet"
)

// directoryReport is the memory use of one directory, in resident bytes.
type directoryReport struct {
	Records int             `json:"records"`
	Loaded  holdfast.Millis `json:"loaded_ms"`
	Before  int64           `json:"before"` // connected, nothing listed
	Peak    int64           `json:"peak"`   // directly after the first list
	After   int64           `json:"after"`  // at rest
}

// MeasureDirectory is the role behind Options.Directory: the directory of one node in a
// separate process. args are the endpoints of etcd. It prints a directoryReport.
func MeasureDirectory(ctx context.Context, args []string, out io.Writer) error {
	s, err := etcd.Dial(ctx, etcd.Config{Endpoints: args})
	if err != nil {
		return err
	}
	defer s.Close()
	var r directoryReport
	if r.Before, err = restingMemory(); err != nil {
		return err
	}
	d := fleet.NewDirectory(s, "observer", fleet.NewMetrics(prometheus.NewRegistry()), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	ran := make(chan error, 1)
	start := time.Now()
	go func() { ran <- d.Run(ctx) }()
	defer func() { cancel(); <-ran }()
	select {
	case <-d.Ready():
	case <-ctx.Done():
		return fmt.Errorf("the directory is not complete: %w", ctx.Err())
	}
	r.Loaded, r.Records = holdfast.Millis(time.Since(start)), d.Len()
	if _, r.Peak, err = bench.ProcessUsage(os.Getpid()); err != nil {
		return err
	}
	time.Sleep(time.Second) // until the watch has begun
	if r.After, err = restingMemory(); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(r)
}

// restingMemory returns the resident memory of this process after a garbage collection.
func restingMemory() (int64, error) {
	runtime.GC()
	debug.FreeOSMemory()
	_, rss, err := bench.ProcessUsage(os.Getpid())
	return rss, err
}

// measureDirectory measures a directory in a separate process.
func (s *simulation) measureDirectory(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*rig.Patience)
	defer cancel()
	args := append(append([]string{}, s.o.Directory[1:]...), s.etcd.Endpoints()...)
	cmd := exec.CommandContext(ctx, s.o.Directory[0], args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("measure a directory: %w", err)
	}
	if err := json.Unmarshal(out, &s.directory); err != nil {
		return fmt.Errorf("measure a directory: %w", err)
	}
	return nil
}
