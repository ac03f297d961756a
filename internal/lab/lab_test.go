package lab_test

import (
	"os"
	"testing"

	"holdfast/internal/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

func TestEngineUp(t *testing.T) {
	e := labtest.Engine(t)
	t.Log(e.Host(), e.Pid())
}
