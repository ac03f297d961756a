package job

import (
	"bytes"
	"io"
)

// Exit codes of commands that could not be run (POSIX, Shell Command Language,
// 2.8.2).
const (
	codeNotRun   = 126
	codeNotFound = 127
)

// refusal stands before a step's output. Of a command that cannot be run, the
// engine writes why to where its output would go (moby,
// api/server/router/container/exec.go postContainerExecStart): that belongs to
// the errors, and in Docker 20.10 the exit code is 126 also where there is no such
// program.
type refusal struct {
	to     io.Writer // may be nil
	begun  bool
	saying []byte // kept back, because it may be the engine's
}

// refusalPrefix begins what the runtime says.
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

// end says what was kept back, where it belongs, and returns the exit code.
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
