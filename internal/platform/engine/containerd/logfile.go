package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// A log is two files; the older one is full. Their records have the format of
// Kubernetes' container logs (cri-api, "CRI log format"): time, stream, P for a part
// of a line or F for its end, and the text.
const (
	logFile = "log"
	oldFile = "log.1"
)

// maxLog is the largest size of a log file, in bytes; a container has two.
const maxLog = 8 << 20

// logWriter appends to a log. One process at a time has it open.
type logWriter struct {
	dir  string
	mu   sync.Mutex
	file *os.File
	size int64
}

func openLog(dir string) (*logWriter, error) {
	w := &logWriter{dir: dir}
	return w, w.open()
}

func (w *logWriter) open() error {
	f, err := os.OpenFile(filepath.Join(w.dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	w.file, w.size = f, fi.Size()
	return nil
}

// write appends a line, or the part of one.
func (w *logWriter) write(at time.Time, stream string, line []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	tag := "P"
	if line[len(line)-1] == '\n' {
		tag, line = "F", line[:len(line)-1]
	}
	entry := fmt.Appendf(nil, "%s %s %s %s\n", at.UTC().Format(time.RFC3339Nano), stream, tag, line)
	if w.size+int64(len(entry)) > maxLog {
		w.rotate()
	}
	n, _ := w.file.Write(entry) // on a full disk the line is lost
	w.size += int64(n)
}

// rotate begins a new file. If that fails, the old file goes on.
func (w *logWriter) rotate() {
	old := w.file
	if err := os.Rename(filepath.Join(w.dir, logFile), filepath.Join(w.dir, oldFile)); err != nil {
		return
	}
	if err := w.open(); err != nil {
		return
	}
	old.Close()
}

func (w *logWriter) close() { w.file.Close() }

// logReader reads a log's records, over rotations.
type logReader struct {
	dir   string
	files []*os.File // the files to read, the current one last
	part  []byte     // of an incomplete record
	buf   []byte     // read and not returned yet
}

func openReader(dir string) (*logReader, error) {
	for {
		r := &logReader{dir: dir}
		now, err := os.Open(filepath.Join(dir, logFile))
		if errors.Is(err, fs.ErrNotExist) {
			return r, nil // the container was not started yet
		}
		if err != nil {
			return nil, err
		}
		r.files = []*os.File{now}
		old, err := os.Open(filepath.Join(dir, oldFile))
		if errors.Is(err, fs.ErrNotExist) {
			return r, nil
		}
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		if !same(now, old) {
			r.files = []*os.File{old, now}
			return r, nil
		}
		// The log was rotated just now.
		if err := errors.Join(old.Close(), r.close()); err != nil {
			return nil, err
		}
	}
}

func same(a, b *os.File) bool {
	x, errX := a.Stat()
	y, errY := b.Stat()
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// next returns the next record, or io.EOF if there is none yet.
func (r *logReader) next() (entry, error) {
	for {
		if i := bytes.IndexByte(r.buf, '\n'); i >= 0 {
			line := string(append(r.part, r.buf[:i]...))
			r.part, r.buf = nil, r.buf[i+1:]
			if e, ok := parseEntry(line); ok {
				return e, nil
			}
			continue // cut off by a crash
		}
		r.part, r.buf = append(r.part, r.buf...), nil
		if err := r.fill(); err != nil {
			return entry{}, err
		}
	}
}

// fill reads on, in the next file if this one was rotated.
func (r *logReader) fill() error {
	if len(r.files) == 0 {
		fresh, err := openReader(r.dir)
		if err != nil {
			return err
		}
		if r.files = fresh.files; len(r.files) == 0 {
			return io.EOF
		}
	}
	chunk := make([]byte, 64<<10)
	n, err := r.files[0].Read(chunk)
	if n > 0 {
		r.buf = chunk[:n]
		return nil
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return r.advance()
}

// advance goes to the next file at the end of one. nil means that there is a file to
// read. A rotated file gets no more records.
func (r *logReader) advance() error {
	if len(r.files) == 1 {
		now, err := os.Open(filepath.Join(r.dir, logFile))
		if err != nil {
			return io.EOF // removed with its container
		}
		if same(now, r.files[0]) {
			now.Close()
			return io.EOF
		}
		r.files = append(r.files, now)
		return nil // once more: a record may have come before the rotation
	}
	r.files[0].Close()
	r.files, r.part = r.files[1:], nil
	return nil
}

func (r *logReader) close() error {
	var err error
	for _, f := range r.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// entry is a record.
type entry struct {
	at   string
	text string // with its line break, if it is complete
}

func parseEntry(line string) (entry, bool) {
	at, rest, ok := strings.Cut(line, " ")
	_, rest, ok2 := strings.Cut(rest, " ")
	tag, text, ok3 := strings.Cut(rest, " ")
	if !ok || !ok2 || !ok3 || tag != "F" && tag != "P" {
		return entry{}, false
	}
	if tag == "F" {
		text += "\n"
	}
	return entry{at, text}, true
}

// more reports whether the current file has grown or was rotated.
func (r *logReader) more() bool {
	if len(r.files) == 0 {
		_, err := os.Stat(filepath.Join(r.dir, logFile))
		return err == nil
	}
	now := r.files[len(r.files)-1]
	at, err := now.Seek(0, io.SeekCurrent)
	fi, errStat := now.Stat()
	atPath, errPath := os.Stat(filepath.Join(r.dir, logFile))
	return err == nil && errStat == nil && errPath == nil && (fi.Size() > at || !os.SameFile(fi, atPath))
}
