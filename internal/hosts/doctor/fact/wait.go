package fact

import (
	"slices"
	"strings"
)

// Wait is what a task in uninterruptible sleep waits for.
type Wait struct {
	// What names it in a sentence that begins with "waits for".
	What string
	// Types are the types of file system, as mountinfo has them, whose server does not answer.
	Types []string
	// Frozen means that a file system is frozen, fsfreeze(8).
	Frozen bool
	// Process means that the task waits for another process, as it is meant to.
	Process bool
}

// Known reports whether the wait has a cause outside this kernel, or an operator's: no work of
// this host ends it.
func (w Wait) Known() bool { return len(w.Types) > 0 || w.Frozen }

// WaitOf returns what a task waits for by its path through the kernel, the innermost function
// first. Modules of file systems prefix the names of their functions with their own.
func WaitOf(kernel []string) Wait {
	for i, f := range kernel {
		if i == 0 && slices.Contains(waitsForProcess(), f) {
			return Wait{What: "another process", Process: true}
		}
		for _, fs := range remoteFileSystems() {
			if slices.ContainsFunc(fs.prefixes, func(p string) bool { return strings.HasPrefix(f, p) }) {
				return Wait{What: fs.what, Types: fs.types}
			}
		}
	}
	if slices.ContainsFunc(kernel, AsksPermission) {
		return Wait{What: "the answer of a program that scans files"}
	}
	if len(kernel) > 0 && strings.Contains(kernel[0], "percpu_") && slices.ContainsFunc(kernel, writes) {
		return Wait{What: "a file system that is frozen", Frozen: true}
	}
	if slices.Contains(kernel, "mem_cgroup_oom_synchronize") {
		return Wait{What: "memory: its group is at the limit, and the kernel may not kill a process of it"}
	}
	if slices.ContainsFunc(kernel, ofDisk) {
		return Wait{What: "a disk"}
	}
	return Wait{What: "the kernel"}
}

// AsksPermission reports whether a function of the kernel waits for the answer to a permission event,
// fanotify(7): fs/notify/fanotify/fanotify.c. Compilers may add a suffix to its name.
func AsksPermission(function string) bool {
	return strings.HasPrefix(function, "fanotify_handle_event") || strings.HasPrefix(function, "fanotify_get_response")
}

// waitsForProcess lists functions in which a task waits for a process by design: the parent of a
// vfork for its child (kernel/fork.c), a call for its supervisor (seccomp_unotify(2)), and a frozen
// task to be thawed (kernel/freezer.c).
func waitsForProcess() []string {
	return []string{"kernel_clone", "_do_fork", "do_fork", "wait_for_vfork_done", "seccomp_do_user_notification", "refrigerator", "__refrigerator"}
}

type remote struct {
	what            string
	prefixes, types []string
}

func remoteFileSystems() []remote {
	return []remote{
		{"the server of a FUSE file system", []string{"fuse_", "__fuse_", "request_wait_answer"}, []string{"fuse", "fuseblk", "virtiofs"}},
		{"an NFS server", []string{"nfs_", "nfs3_", "nfs4_", "_nfs4_", "rpc_", "__rpc_", "rpcauth_"}, []string{"nfs", "nfs4"}},
		{"an SMB server", []string{"cifs_", "smb2_", "SMB2_", "__cifs_"}, []string{"cifs", "smb3"}},
		{"a Ceph cluster", []string{"ceph_", "__ceph_"}, []string{"ceph"}},
		{"a 9p server", []string{"p9_", "v9fs_"}, []string{"9p"}},
		{"an automounter", []string{"autofs_"}, []string{"autofs"}},
	}
}

// writes reports whether a function asks for the right to write to a file system, which a frozen
// one does not give (sb_start_write, include/linux/fs.h, which compilers inline).
func writes(f string) bool {
	return strings.HasPrefix(f, "mnt_want_write") || strings.HasPrefix(f, "vfs_write") || strings.HasPrefix(f, "vfs_iter_write") ||
		strings.HasPrefix(f, "__sb_start_write") || strings.HasPrefix(f, "vfs_fallocate") || strings.HasSuffix(f, "page_mkwrite")
}

// ofDisk reports whether a function waits for requests of a disk, or for a journal on it.
func ofDisk(f string) bool {
	return slices.ContainsFunc([]string{"io_schedule", "blk_", "bio_", "submit_bio", "jbd2_", "xlog_", "xfs_log", "folio_wait_", "wait_on_page", "__wait_on_buffer", "btrfs_"}, func(p string) bool {
		return strings.HasPrefix(f, p)
	})
}
