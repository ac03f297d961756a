package connfd

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"holdfast/test/serve"
)

// A connection that is taken and opened again has lost nothing.
func TestTakeAndOpen(t *testing.T) {
	client, server := serve.Pair(t)
	client.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(client, "before "); err != nil {
		t.Fatal(err)
	}
	fd, err := Take(server)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Write([]byte("x")); err == nil {
		t.Error("the connection that was taken is still open")
	}
	if _, err := io.WriteString(client, "and after"); err != nil {
		t.Fatal(err)
	}
	again, err := Open(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(again); err != nil || string(b) != "before and after" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := again.Write([]byte("answer")); err != nil {
		t.Error(err)
	}
	again.Close()
	if b, err := io.ReadAll(client); err != nil || string(b) != "answer" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestOpenOfOthers(t *testing.T) {
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if c, err := Open(fd); err == nil {
		c.Close()
		t.Error("a file is a connection")
	}
	if err := unix.Close(fd); err == nil {
		t.Error("the descriptor was left open")
	}
	if _, err := Open(-1); err == nil {
		t.Error("-1 is a connection")
	}
}

// descriptors returns n descriptors.
func descriptors(t *testing.T, n int) (fds []int) {
	t.Helper()
	for range n {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	return fds
}

func TestPackAndUnpack(t *testing.T) {
	fds := descriptors(t, 3)
	conns := []Conn{
		{FDs: fds[:2], State: []byte(`"` + strings.Repeat("x", 300<<10) + `"`)},
		{State: []byte(`{}`)},
		{FDs: fds[2:], State: []byte(`1`)},
	}
	packed, err := Pack(conns)
	if err != nil {
		t.Fatal(err)
	}
	if len(packed) != 4 {
		t.Errorf("%d descriptors", len(packed))
	}
	got, err := Unpack(packed)
	if err != nil {
		t.Fatal(err)
	}
	conns[1].FDs = []int{}
	if diff := cmp.Diff(conns, got); diff != "" {
		t.Error(diff)
	}
	for _, c := range got {
		c.Close()
	}
}

// What does not fit together is refused, and no descriptor stays open.
func TestUnpackOfOthers(t *testing.T) {
	for name, change := range map[string]func(fds []int) []int{
		"none":           func([]int) []int { return nil },
		"one is missing": func(fds []int) []int { unix.Close(fds[2]); return fds[:2] },
		"one too many":   func(fds []int) []int { return append(fds, descriptors(t, 1)...) },
		"no states":      func(fds []int) []int { unix.Close(fds[0]); return append(descriptors(t, 1), fds[1:]...) },
	} {
		packed, err := Pack([]Conn{{FDs: descriptors(t, 2), State: []byte("1")}})
		if err != nil {
			t.Fatal(err)
		}
		fds := change(packed)
		if _, err := Unpack(fds); err == nil {
			t.Errorf("%s: no error", name)
		}
		for _, fd := range fds {
			if err := unix.Close(fd); err == nil {
				t.Errorf("%s: descriptor %d was left open", name, fd)
			}
		}
		if len(fds) == 0 {
			Conn{FDs: packed}.Close()
		}
	}
}
