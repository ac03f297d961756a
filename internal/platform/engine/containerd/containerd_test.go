package containerd_test

import (
	"context"
	"os"
	"sync"
	"testing"

	"holdfast/internal/platform/engine/enginetest"
	"holdfast/test/lab/labtest"
	"holdfast/test/vm/vmtest"
)

func TestMain(m *testing.M) {
	if vmtest.Inside() {
		os.Exit(m.Run())
	}
	vmtest.Fetch()
	os.Exit(labtest.Main(m))
}

func TestConformance(t *testing.T) {
	e, daemon := labtest.Containerd(t)
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		if err := e.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer run.Wait()
	defer cancel()
	enginetest.Run(t, enginetest.Setup{
		Engine: e,
		Image:  labtest.Busybox,
		Stop:   daemon.StopDaemon,
		Crash:  daemon.Kill,
		Start:  daemon.StartDaemon,
	})
}
