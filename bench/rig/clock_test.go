package rig

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"holdfast/internal/platform/linux/boottime"
)

// roleClock is the role of a program that prints its clocks for each line that it reads.
const roleClock = "clock"

// tellTime is the role roleClock. Meanwhile other goroutines read the clock all the time.
func tellTime() {
	for range 2 {
		go func() {
			for {
				_ = time.Now()
			}
		}()
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(time.Now().UnixNano(), int64(boottime.Now()))
	}
}

// The clock of one process is wrong for a while. This process's clock, and the other
// clocks of that process, stay as they are.
func TestClockOfOneProcess(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", roleClock)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // killed
	})
	answers := bufio.NewReader(out)
	ask := func() (wall, boot time.Duration) {
		t.Helper()
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Fatal(err)
		}
		line, err := answers.ReadString('\n')
		var real, since int64
		if _, e := fmt.Sscan(line, &real, &since); err != nil || e != nil {
			t.Fatalf("%q: %v, %v", line, err, e)
		}
		return time.Until(time.Unix(0, real)), time.Duration(since - int64(boottime.Now()))
	}
	ask() // it runs
	c, err := OpenClock(cmd.Process.Pid)
	if runtime.GOARCH != "amd64" {
		if err == nil {
			t.Error("no error")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, by := range []time.Duration{time.Hour, -time.Hour, 0, 2 * time.Hour} {
		if err := c.Shift(by); err != nil {
			t.Fatal(err)
		}
		if wall, boot := ask(); (wall-by).Abs() > 20*time.Minute || boot.Abs() > 20*time.Minute {
			t.Errorf("shifted by %v: the clock is off by %v, the time since boot by %v", by, wall, boot)
		}
	}
	if err := c.Restore(); err != nil {
		t.Fatal(err)
	}
	if wall, _ := ask(); wall.Abs() > 20*time.Minute {
		t.Errorf("restored: the clock is off by %v", wall)
	}
	if err := c.Shift(100 * 365 * 24 * time.Hour); err == nil { // it has more seconds than fit
		t.Error("shifted by too much")
	}
}
