package api

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"holdfast"
)

// part is a part of a file.
type part struct{ from, count int64 }

// rangeOf returns the part of a file that a request asks for, and the status of the answer
// (RFC 9110, 14). Several ranges at once, and a range of another version of the file, are
// answered with the whole file.
func rangeOf(r *http.Request, h http.Header, f holdfast.File) (part, int, error) {
	whole := part{0, f.Size}
	text, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes=")
	if v := r.Header.Get("If-Range"); !ok || v != "" && v != f.Modified.UTC().Format(http.TimeFormat) {
		return whole, http.StatusOK, nil
	}
	p, ok := parseRange(text, f.Size)
	if !ok {
		return whole, http.StatusOK, nil
	}
	if p.count <= 0 {
		h.Set("Content-Range", fmt.Sprintf("bytes */%d", f.Size))
		return part{}, 0, &Error{Code: CodeBadRange, Message: fmt.Sprintf("the file has %d bytes, none of them in the range %q", f.Size, bounded(text))}
	}
	h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", p.from, p.from+p.count-1, f.Size))
	return p, http.StatusPartialContent, nil
}

// parseRange reads "from-to", "from-" or "-last". The part is empty if no byte is in the
// range.
func parseRange(text string, size int64) (part, bool) {
	first, last, ok := strings.Cut(strings.TrimSpace(text), "-")
	if !ok || strings.Contains(text, ",") {
		return part{}, false
	}
	number := func(s string) (int64, bool) {
		n, err := strconv.ParseUint(s, 10, 63)
		return int64(n), err == nil
	}
	if first == "" {
		n, ok := number(last)
		n = min(n, size)
		return part{size - n, n}, ok
	}
	from, ok := number(first)
	if !ok {
		return part{}, false
	}
	to := size - 1
	if last != "" {
		n, ok := number(last)
		if !ok || n < from {
			return part{}, false
		}
		to = min(to, n)
	}
	return part{from, to - from + 1}, true
}
