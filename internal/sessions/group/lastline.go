package group

import "strings"

// maxLine is the length up to which a line of caught_up is kept, in bytes.
const maxLine = 200

// lastLine keeps the end of what is written to it.
type lastLine struct{ end []byte }

func (l *lastLine) Write(p []byte) (int, error) {
	l.end = append(l.end, p[max(0, len(p)-2*maxLine):]...)
	l.end = l.end[max(0, len(l.end)-2*maxLine):]
	return len(p), nil
}

// text returns the last line that is not empty, or otherwise other.
func (l *lastLine) text(other string) string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(l.end), ""))
	if i := strings.LastIndexAny(text, "\r\n"); i >= 0 {
		text = text[i+1:]
	}
	if text == "" {
		return other
	}
	return strings.ToValidUTF8(text[:min(len(text), maxLine)], "")
}
