package inroot

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// fileCaps are the capabilities that Go keeps: those that the root user of a container has
// over files (capabilities(7)). CAP_SYS_RESOURCE is not among them: quotas and reserved
// blocks count.
const fileCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID

// Go calls f in a new thread that makes files with the root user's ids of the mapped
// namespace, and that has no capability except those over files. Without the ids, the
// kernel refuses to make a file in a file system that was mounted in that namespace
// (EOVERFLOW). A process without CAP_SETUID and CAP_SETGID keeps its ids. f must not start
// a process, and has to do its work in the goroutine in which it is called. The thread ends
// with f. The channel gets f's error. For the root of this process, f runs in a goroutine
// with the rights of the process.
func (r *Root) Go(f func() error) <-chan error {
	done := make(chan error, 1)
	if r.own {
		go func() { done <- f() }()
		return done
	}
	uid, ok1 := r.UIDs.Outside(0)
	gid, ok2 := r.GIDs.Outside(0)
	if !ok1 || !ok2 {
		done <- errors.New("the namespace has no root user")
		return done
	}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := become(uid, gid)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return done
}

// become changes the thread.
func become(uid, gid int) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&head, &sets[0]); err != nil {
		return fmt.Errorf("read the capabilities of a thread: %w", err)
	}
	const setsIDs = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	if (uid != 0 || gid != 0) && sets[0].Effective&setsIDs == setsIDs {
		// A change of the ids makes the whole process undumpable (credentials(7)).
		dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		if err != nil {
			return fmt.Errorf("take the ids of a container: %w", err)
		}
		if err := setIDs(uid, gid); err != nil {
			return err
		}
		if dumpable == 1 {
			if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
				return fmt.Errorf("take the ids of a container: %w", err)
			}
		}
	}
	sets[0].Effective, sets[1].Effective = sets[0].Permitted&fileCaps, 0
	if err := unix.Capset(&head, &sets[0]); err != nil {
		return fmt.Errorf("drop the capabilities of a thread: %w", err)
	}
	return nil
}

// setIDs sets the thread's ids for files. setfsuid(2) reports no error: it returns the id
// before the call.
func setIDs(uid, gid int) error {
	_, err1 := unix.SetfsgidRetGid(gid)
	_, err2 := unix.SetfsuidRetUid(uid)
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("take the ids of a container: %w", err)
	}
	if now, _ := unix.SetfsuidRetUid(uid); now != uid {
		return fmt.Errorf("take the ids of a container: the kernel refuses user %d", uid)
	}
	if now, _ := unix.SetfsgidRetGid(gid); now != gid {
		return fmt.Errorf("take the ids of a container: the kernel refuses group %d", gid)
	}
	return nil
}
