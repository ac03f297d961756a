// Package fastpath parses the plain requests and responses that the gateway passes on
// without net/http. A message is plain if it has arrived whole, or with the whole of its
// header, and if nothing in it can be read in two ways. Every other message is left to
// net/http, so the parser accepts less than net/http does and never corrects anything.
package fastpath

import (
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Kind tells apart the fields that the gateway may have to change.
type Kind uint8

// Kinds of fields.
const (
	Other         Kind = iota
	Authorization      // of requests
	Cookie             // of requests
	Referer            // of requests
	Location           // of responses
	SetCookie          // of responses
)

// Field is a field of a header (RFC 9110, 5).
type Field struct {
	Name, Value string // as they were sent, the value without white space around it
	Kind        Kind
}

// Request is a plain HTTP/1.1 request. It has no fields that belong to the connection, and
// neither Host nor Forwarded.
type Request struct {
	Method string
	Path   string // as it was sent; it begins with one slash
	Query  string // with its question mark, or ""
	Host   string
	Origin bool // there is a field Origin, which is among Fields
	Fields []Field
	Body   []byte // all of it; it is part of the parsed bytes
}

// Parse parses one request. It returns false if the request is not plain, if it has not
// arrived whole, or if other bytes follow. r is undefined then. Parse reuses r.Fields.
func (r *Request) Parse(b []byte) bool {
	*r = Request{Fields: r.Fields[:0]}
	head, length, ok := cutHead(b)
	if !ok {
		return false
	}
	line, fields, ok := strings.Cut(head, "\r\n")
	if !ok || !r.parseLine(line) {
		return false
	}
	body := -1
	if !eachField(fields, func(f Field) bool { return r.add(f, &body) }) {
		return false
	}
	r.Body = b[length:]
	return r.Host != "" && len(r.Body) == max(0, body)
}

// parseLine parses the first line (RFC 9112, 3).
func (r *Request) parseLine(line string) bool {
	method, rest, _ := strings.Cut(line, " ")
	target, isHTTP := strings.CutSuffix(rest, " HTTP/1.1")
	switch method {
	case "GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH":
	default:
		return false // HEAD too: its response has a length and no body
	}
	r.Method = method
	r.Path = target
	if at := strings.IndexByte(target, '?'); at >= 0 {
		r.Path, r.Query = target[:at], target[at:]
	}
	return isHTTP && plainPath(r.Path) && plainQuery(r.Query)
}

// plainPath reports whether net/url leaves a path as it is (RFC 3986, 3.3).
func plainPath(path string) bool {
	if path == "" || path[0] != '/' || strings.HasPrefix(path, "//") {
		return false
	}
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte("-._~!$&'()*+,;=:@/", c) >= 0:
		case c == '%' && i+2 < len(path) && isHex(path[i+1]) && isHex(path[i+2]):
			i += 2
		default:
			return false
		}
	}
	return true
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// plainQuery reports whether a query has visible ASCII characters only, and no fragment.
func plainQuery(query string) bool {
	for i := 0; i < len(query); i++ {
		if c := query[i]; c <= ' ' || c > '~' || c == '#' {
			return false
		}
	}
	return true
}

// add adds a field, unless it belongs to the connection. body is the announced length of the
// body, -1 without one.
func (r *Request) add(f Field, body *int) bool {
	var lower [20]byte
	switch name := lowered(&lower, f.Name); string(name) {
	case "host":
		if r.Host != "" || f.Value == "" || !httpguts.ValidHostHeader(f.Value) {
			return false
		}
		r.Host = f.Value
		return true
	case "connection":
		return strings.EqualFold(f.Value, "keep-alive")
	case "keep-alive", "forwarded":
		return true // belongs to the connection; RFC 7239
	case "content-length":
		n, ok := parseLength(f.Value)
		if !ok || *body >= 0 {
			return false
		}
		*body = int(n)
	case "transfer-encoding", "expect", "upgrade", "http2-settings", "te", "trailer",
		"proxy-authenticate", "proxy-authorization", "proxy-connection":
		return false
	case "origin":
		r.Origin = true
	case "authorization":
		f.Kind = Authorization
	case "cookie":
		f.Kind = Cookie
	case "referer":
		f.Kind = Referer
	}
	r.Fields = append(r.Fields, f)
	return true
}

// lowered returns a name in lower case, or as much of it as fits. Every name that is
// compared is shorter than the space.
func lowered(space *[20]byte, name string) []byte {
	n := copy(space[:], name)
	for i, c := range space[:n] {
		if c >= 'A' && c <= 'Z' {
			space[i] = c + 'a' - 'A'
		}
	}
	return space[:n]
}

// cutHead returns the header of a message without the empty line that ends it, and the
// length of both.
func cutHead(b []byte) (head string, length int, ok bool) {
	const end = "\r\n\r\n"
	head = string(b)
	at := strings.Index(head, end)
	if at < 0 {
		return "", 0, false
	}
	return head[:at], at + len(end), true
}

// eachField calls add with each field. It returns false at the first field that is not plain, or
// for which add does.
func eachField(fields string, add func(Field) bool) bool {
	for fields != "" {
		f, rest, ok := cutField(fields)
		if !ok || !add(f) {
			return false
		}
		fields = rest
	}
	return true
}

// cutField parses the first field. A line that continues another (RFC 9112, 5.2), white
// space around the name and a line that ends otherwise than by CR and LF are not plain.
func cutField(fields string) (f Field, rest string, ok bool) {
	line, rest, _ := strings.Cut(fields, "\r\n")
	name, value, ok := strings.Cut(line, ":")
	if !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
		return f, "", false
	}
	return Field{Name: name, Value: strings.Trim(value, " \t")}, rest, true
}

// parseLength parses a Content-Length (RFC 9110, 8.6) in its only spelling.
func parseLength(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n >= 0 && strconv.FormatInt(n, 10) == text
}
