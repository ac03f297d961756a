package warmpool

import (
	"os"
	"testing"

	"holdfast/internal/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }
