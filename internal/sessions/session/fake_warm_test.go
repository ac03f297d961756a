package session

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"holdfast"
	"holdfast/internal/sessions/kill/killtest"
	"holdfast/internal/sessions/pool/container"
)

// key returns the session of a container, by its label, or by the identity directory
// of a warm one. It is "" for an unclaimed one.
func (c *fakeContainer) key() holdfast.SessionKey {
	if c.told == "" {
		return holdfast.SessionKey(c.Labels[LabelSession])
	}
	text, err := os.ReadFile(filepath.Join(c.told, container.FileName))
	var i holdfast.Identity
	if err != nil || json.Unmarshal(text, &i) != nil {
		return ""
	}
	return i.Session
}

// onlyOne records a violation if another container runs for the same key. f.mu is held.
func (f *fakeEngine) onlyOne(c *fakeContainer, what string) {
	key := c.key()
	if epoch := epochOf(c.Container); epoch != 0 {
		if epoch < f.epochs[key] {
			f.problems = append(f.problems, fmt.Sprintf("%s %s, and %s had epoch %d", c.Name, what, key, f.epochs[key]))
		}
		f.epochs[key] = epoch
	}
	for _, other := range f.containers {
		if key != "" && other != c && other.State == "running" && other.key() == key && !other.dead() {
			f.problems = append(f.problems, fmt.Sprintf("%s %s while %s runs for %s", c.Name, what, other.Name, key))
		}
	}
}

// program simulates the program in a warm container: it connects before its server
// answers, and acknowledges its identity. It is not frozen with the container's
// process.
func (f *fakeEngine) program(c *fakeContainer) {
	conn, err := net.Dial("unix", filepath.Join(c.told, container.SocketName))
	if err != nil {
		return // its agent has ended
	}
	go func() {
		defer conn.Close()
		if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
			return
		}
		f.set(func() {
			f.heard = append(f.heard, c.ID)
			f.onlyOne(c, "is claimed")
		})
		fmt.Fprintln(conn, "ready")
	}()
}

// end kills the process, frozen or not, and waits until it is reaped.
func (c *fakeContainer) end() {
	_ = c.cmd.Process.Kill() // it may have ended
	_ = killtest.Thaw(c.ID)  // likewise
	<-c.ended
}
