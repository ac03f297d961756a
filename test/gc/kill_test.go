package gc

import (
	"archive/tar"
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// A collector is killed with SIGKILL after a deletion, or when its trash is not empty. The next
// collector frees the rest and continues, and used objects remain.
func TestKilledInTheMiddle(t *testing.T) {
	for name, when := range map[string]func(*host, *bufio.Scanner){
		"after a deletion": func(_ *host, out *bufio.Scanner) { out.Scan() },
		"while it links":   func(h *host, _ *bufio.Scanner) { poll.Until(h, "trash", func() bool { return len(h.trash()) > 0 }) },
	} {
		t.Run(name, func(t *testing.T) {
			if !labtest.Long() && name != "while it links" {
				t.Skip("long: the other kill is the harder one")
			}
			h := newHost(t)
			kept := h.image("kept:1", 10)
			c := h.create("kept:1", "")
			for i := range 4 {
				h.image(fmt.Sprintf("x:%d", i), 4000)
			}
			h.killed(when)
			cy := h.collect(everything())
			h.expect("kept:1")
			if h.imageID("kept:1") != kept || len(h.trash()) > 0 {
				t.Errorf("kept:1 is %s, the trash has %v", h.imageID("kept:1"), h.trash())
			}
			if !cy.Ended || len(cy.Deleted) == 0 {
				t.Errorf("%+v", cy)
			}
			h.start(c)
			h.readable(c)
		})
	}
}

// killed runs a collector in a separate process, and kills it.
func (h *host) killed(when func(*host, *bufio.Scanner)) {
	h.Helper()
	killed(h.T, childArgs{Host: h.lab.Host(), Data: h.data, Config: everything()}, func(out *bufio.Scanner) { when(h, out) })
}

// killed is host.killed, on any engine.
func killed(t *testing.T, a childArgs, when func(*bufio.Scanner)) {
	t.Helper()
	args, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+string(args))
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	when(bufio.NewScanner(out))
	if err := cmd.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the collector had ended before it was killed")
	}
}

// readable reads every file in a container, and returns their number.
func (h *host) readable(id string) (n int) {
	h.Helper()
	files, err := h.api.ContainerExport(h.Context(), id, client.ContainerExportOptions{})
	if err != nil {
		h.Fatal(err)
	}
	defer files.Close()
	for r := tar.NewReader(files); ; n++ {
		if _, err = r.Next(); err != nil {
			break
		}
		if _, err = io.Copy(io.Discard, r); err != nil {
			break
		}
	}
	if !errors.Is(err, io.EOF) || n < 10 {
		h.Errorf("%d files, %v", n, err)
	}
	return n
}
