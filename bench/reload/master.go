package reload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"holdfast/internal/platform/tasks"
)

// master reloads the worker of a HAProxy in master-worker mode (-W, management.txt 4). The
// master keeps the listeners and hands them to the next worker.
type master struct{ stack *stack }

func (m master) socket() string { return m.stack.file("master.sock") }

// begin starts HAProxy again, with a master.
func (m master) begin(ctx context.Context) (string, error) {
	if err := m.stack.killProxies(); err != nil {
		return "", err
	}
	return "", m.stack.startHAProxy(ctx, "-W", "-S", m.socket())
}

// reloadTime bounds a reload.
const reloadTime = 20 * time.Second

// change asks for a reload, and returns when the next worker runs. From HAProxy 2.7 on the master
// answers when that worker is ready (management.txt 9.4). Before, it closes the connection, and the
// bench waits for the next worker.
func (m master) change(ctx context.Context, _ Change) (time.Duration, error) {
	before, err := m.worker(ctx)
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	answer, _ := m.ask(ctx, "reload\n", reloadTime) // an old master closes or resets the connection
	switch {
	case strings.Contains(answer, "Success=1"):
		return time.Since(begun), nil
	case answer != "":
		return 0, fmt.Errorf("HAProxy's master did not reload: %s", answer)
	}
	for {
		// The master does not answer while it executes itself again.
		now, err := m.worker(ctx)
		if err == nil && now != before {
			return time.Since(begun), nil
		}
		if tasks.Sleep(ctx, 10*time.Millisecond) != nil {
			return 0, errors.Join(errors.New("HAProxy's master has no new worker"), err)
		}
	}
}

// send sends a command to the master. The answer has to come within the time.
func (m master) send(ctx context.Context, command string, limit time.Duration) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", m.socket())
	if err != nil {
		return nil, err
	}
	if err = c.SetDeadline(time.Now().Add(limit)); err == nil {
		_, err = io.WriteString(c, command)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// ask sends a command to the master and returns its answer, up to the end of the connection or of
// the time.
func (m master) ask(ctx context.Context, command string, limit time.Duration) (string, error) {
	c, err := m.send(ctx, command, limit)
	if err != nil {
		return "", err
	}
	defer c.Close()
	text, err := io.ReadAll(c) // a reset is an end, too
	return string(text), err
}

// worker returns the pid of the present worker.
func (m master) worker(ctx context.Context) (string, error) {
	c, err := m.send(ctx, "show proc\n", time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	// The connection stays open after the answer.
	workers := false
	for lines := bufio.NewScanner(c); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if workers && len(words) > 1 && words[1] == "worker" {
			return words[0], nil
		}
		workers = lines.Text() == "# workers"
	}
	return "", errors.New("HAProxy's master names no worker")
}
