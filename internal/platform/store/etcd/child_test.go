package etcd

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// Tests that break a server run it in a process of its own (this binary), because a
// broken etcd leaves goroutines and locks behind until its process ends.
const (
	childDir  = "HOLDFAST_TEST_ETCD_DIR"
	childMode = "HOLDFAST_TEST_ETCD_MODE"
)

// The modes of a child.
const (
	childHold    = "hold"
	childOverrun = "overrun"
)

// opened is the first line of a child's output.
type opened struct {
	Error string
	Hint  string
	Keys  []holdfast.SessionKey
}

// child opens the server, reports the result, and closes it at EOF on standard input.
func child(dir string) int {
	if os.Getenv(childMode) == childOverrun {
		err := overrun(dir)
		say(opened{Error: fmt.Sprint(err), Hint: holdfast.HintOf(err)})
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := Open(ctx, ServerConfig{DataDir: dir})
	if err != nil {
		say(opened{Error: err.Error(), Hint: holdfast.HintOf(err)})
		return 0
	}
	owners, _, err := s.Store().List(ctx)
	if err != nil {
		say(opened{Error: err.Error(), Hint: holdfast.HintOf(err)})
		return 0
	}
	var keys []holdfast.SessionKey
	for _, o := range owners {
		keys = append(keys, o.Key)
	}
	say(opened{Keys: keys})
	io.Copy(io.Discard, os.Stdin)
	if err := s.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func say(o opened) {
	if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
		panic(err)
	}
}

// startChild returns the child's report, and a function that ends it and returns its
// error.
func startChild(t *testing.T, dir, mode string) (opened, func() error) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir, childMode+"="+mode)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	timer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	done := false
	end := func() error {
		done = true
		in.Close()
		defer timer.Stop()
		return cmd.Wait()
	}
	t.Cleanup(func() {
		if !done {
			must(t, end())
		}
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("the child ended without a report: %v, %v", err, end())
	}
	var o opened
	must(t, json.Unmarshal(line, &o))
	return o, end
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fillDir makes a data directory with one session's record, lease and all, and
// returns what Claim returned.
func fillDir(t *testing.T, dir string) (holdfast.Owner, store.LeaseID) {
	t.Helper()
	s, err := Open(t.Context(), ServerConfig{DataDir: dir})
	must(t, err)
	defer closeServer(t, s)
	id, _, err := s.Store().Grant(t.Context(), time.Minute)
	must(t, err)
	o, err := s.Store().Claim(t.Context(), holdfast.Owner{Key: "alice", Node: "n1", State: holdfast.Claimed}, id)
	must(t, err)
	return o, id
}
