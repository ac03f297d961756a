package docker_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"holdfast"
	"holdfast/internal/engine/docker"
	"holdfast/internal/engine/enginetest"
	"holdfast/internal/lab"
	"holdfast/internal/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// open opens the adapter on the shared engine.
func open(t testing.TB) (*docker.Engine, *lab.Engine) {
	t.Helper()
	private := labtest.Engine(t)
	e, err := docker.Open(t.Context(), docker.Config{Host: private.Host()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e, private
}

func TestConformance(t *testing.T) {
	e, private := open(t)
	enginetest.Run(t, enginetest.Setup{
		Engine: e,
		Image:  labtest.Busybox,
		Stop:   private.StopDaemon,
		Crash:  private.Kill,
		Start:  private.StartDaemon,
	})
}

func TestOpenDown(t *testing.T) {
	for _, host := range []string{"unix:///no/such/docker.sock", "tcp://127.0.0.1:1"} {
		_, err := docker.Open(context.Background(), docker.Config{Host: host})
		if !errors.Is(err, holdfast.ErrEngine) || holdfast.HintOf(err) == "" {
			t.Errorf("%s: %v, hint %q", host, err, holdfast.HintOf(err))
		}
	}
}
