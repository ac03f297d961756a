// Package deathsig starts children that get a signal when this process dies,
// however it dies.
//
// The kernel sends a child's death signal when the thread that forked it ends, and
// not the process (PR_SET_PDEATHSIG(2const)). A Go program's threads end at any
// time, so the thread that forks is kept here until its child has ended.
package deathsig

import (
	"os/exec"
	"runtime"
	"syscall"
)

// Start starts cmd so that sig is sent to it when this process dies. It adds to
// cmd.SysProcAttr. If err is nil, ended yields the result of cmd.Wait when the child
// has ended, and is closed; the caller must not call cmd.Wait. Any goroutine may call
// Start. Each child occupies a thread of this process until it ends.
func Start(cmd *exec.Cmd, sig syscall.Signal) (ended <-chan error, err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = sig
	started, done := make(chan error), make(chan error, 1)
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			done <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return done, nil
}

// Run calls Start and waits for the end of the child. It returns what cmd.Run would
// return.
func Run(cmd *exec.Cmd, sig syscall.Signal) error {
	ended, err := Start(cmd, sig)
	if err != nil {
		return err
	}
	return <-ended
}
