package proc

import (
	"strconv"
	"strings"
)

// Unescape undoes the octal escapes of a path in mountinfo (proc_pid_mountinfo(5)):
// space, tab, newline and backslash are written as \040 and so on.
func Unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
