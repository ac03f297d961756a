package job

import (
	"bytes"
	"io"
)

// Exit codes for commands that cannot be run (POSIX, Shell Command Language,
// 2.8.2).
const (
	codeNotRun   = 126
	codeNotFound = 127
)

// refusal filters the start of a step's output. If a command cannot be run, the
// engine writes the reason to the command's output (moby,
// api/server/router/container/exec.go postContainerExecStart). refusal moves that
// text to stderr. In Docker 20.10 the exit code is 126 even if the program does
// not exist.
type refusal struct {
	to     io.Writer // may be nil
	begun  bool
	saying []byte // held back, because it may come from the engine
}

// refusalPrefix begins the runtime's error message.
var refusalPrefix = []byte("OCI runtime exec failed")

func (r *refusal) Write(p []byte) (int, error) {
	if !r.begun {
		r.begun = true
		if bytes.HasPrefix(p, refusalPrefix) {
			r.saying = bytes.Clone(p)
			return len(p), nil
		}
	}
	if err := r.pass(r.to); err != nil {
		return 0, err
	}
	if r.to == nil {
		return len(p), nil
	}
	return r.to.Write(p)
}

// end writes the held-back text to the output or to stderr, and returns the exit
// code.
func (r *refusal) end(code int, stderr io.Writer) (int, error) {
	if code != codeNotRun && code != codeNotFound || r.saying == nil {
		return code, r.pass(r.to)
	}
	if bytes.Contains(r.saying, []byte("executable file not found")) || bytes.Contains(r.saying, []byte("no such file or directory")) {
		code = codeNotFound
	}
	return code, r.pass(stderr)
}

func (r *refusal) pass(to io.Writer) error {
	p := r.saying
	r.saying = nil
	if len(p) == 0 || to == nil {
		return nil
	}
	_, err := to.Write(p)
	return err
}
