package fastpath

import (
	"bytes"
	"strconv"
	"strings"
)

// Response is the header of a plain HTTP/1.1 response. It has no fields that belong to the
// connection, except Transfer-Encoding.
type Response struct {
	Status  int    // 200 to 599
	Line    string // the first line
	Fields  []Field
	Length  int   // of the header in the parsed bytes
	Body    int64 // the length of the body as it is sent, with the lines of chunks
	Reuse   bool  // the connection may carry another request
	Chunked bool  // the body has the lines of chunks
}

// Parse parses the header of the response to a request, which is not HEAD. It returns false
// if the response is not plain, if its header has not arrived whole, or if more bytes than
// the response have arrived. A chunked body has to be there whole, without trailers. r is
// undefined then. Parse reuses r.Fields.
func (r *Response) Parse(b []byte) bool {
	*r = Response{Fields: r.Fields[:0], Body: -1, Reuse: true}
	head, length, ok := cutHead(b)
	if !ok {
		return false
	}
	r.Length = length
	var fields string
	r.Line, fields, _ = strings.Cut(head, "\r\n")
	if !r.parseLine() {
		return false
	}
	var has present
	if !eachField(fields, func(f Field) bool { return r.add(f, &has) }) {
		return false
	}
	return r.parseBody(b[length:], has)
}

// present are the fields that a response has.
type present struct{ date, contentType, connection, chunked bool }

func (r *Response) parseLine() bool {
	code, isHTTP := strings.CutPrefix(r.Line, "HTTP/1.1 ")
	if !isHTTP || len(code) < len("200 ") || code[3] != ' ' || !plainReason(code[4:]) {
		return false
	}
	status, err := strconv.Atoi(code[:3])
	r.Status = status
	return err == nil && status >= 200 && status <= 599
}

// plainReason reports whether a text has visible ASCII characters and spaces only.
func plainReason(text string) bool {
	for i := 0; i < len(text); i++ {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

func (r *Response) add(f Field, has *present) bool {
	var lower [20]byte
	switch name := lowered(&lower, f.Name); string(name) {
	case "connection":
		r.Reuse = strings.EqualFold(f.Value, "keep-alive")
		known := r.Reuse || strings.EqualFold(f.Value, "close")
		first := !has.connection
		has.connection = true
		return known && first
	case "keep-alive":
		return true // belongs to the connection
	case "content-length":
		n, ok := parseLength(f.Value)
		if !ok || r.Body >= 0 {
			return false
		}
		r.Body = n
	case "transfer-encoding":
		if has.chunked || !strings.EqualFold(f.Value, "chunked") {
			return false
		}
		has.chunked = true
	case "upgrade", "te", "trailer", "proxy-authenticate", "proxy-authorization", "proxy-connection":
		return false
	case "date":
		has.date = true
	case "content-type":
		has.contentType = true
	case "location":
		f.Kind = Location
	case "set-cookie":
		f.Kind = SetCookie
	}
	r.Fields = append(r.Fields, f)
	return true
}

// parseBody determines the length of the body (RFC 9112, 6.3). net/http adds a date, and a
// guess of the type, to responses that have none.
func (r *Response) parseBody(arrived []byte, has present) bool {
	r.Chunked = has.chunked
	switch {
	case !has.date:
		return false
	case r.Status == 204 || r.Status == 304:
		r.Body = 0
		return !has.chunked && len(arrived) == 0 && (r.Status == 304 || !r.has("content-length"))
	case has.chunked:
		announced := r.Body >= 0
		r.Body = int64(len(arrived))
		return !announced && has.contentType && whole(arrived)
	case r.Body == 0:
		return len(arrived) == 0
	}
	return has.contentType && r.Body >= int64(len(arrived))
}

func (r *Response) has(name string) bool {
	for _, f := range r.Fields {
		if strings.EqualFold(f.Name, name) {
			return true
		}
	}
	return false
}

// whole reports whether b is one chunked body, without extensions and trailers (RFC 9112, 7.1).
func whole(b []byte) bool {
	for {
		line, rest, ok := bytes.Cut(b, []byte("\r\n"))
		size, err := strconv.ParseUint(string(line), 16, 31)
		if !ok || err != nil {
			return false
		}
		if size == 0 {
			return string(rest) == "\r\n"
		}
		if len(rest) < int(size)+2 || string(rest[size:size+2]) != "\r\n" {
			return false
		}
		b = rest[size+2:]
	}
}
