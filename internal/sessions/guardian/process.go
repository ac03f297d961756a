package guardian

import (
	"log/slog"

	"holdfast/internal/platform/linux/standby"
)

// socketFD is the guardian's end of the socket: the first extra file of
// exec.Cmd.
const socketFD = 3

// Main runs a guardian in the process that Start has started, and returns its exit
// code. dir is the directory for the files of its plans, or "" for none.
func Main(dir string, log *slog.Logger) int {
	standby.Settle(socketFD, nil)
	s, err := newServer(dir, log)
	if err == nil {
		err = s.run()
	}
	if err != nil {
		log.Error("guardian: " + err.Error())
		return 1
	}
	return 0
}
