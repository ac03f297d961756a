// Package sdnotify reports the state of this process to a service manager
// (sd_notify(3)).
package sdnotify

import (
	"log/slog"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Alive is the keep-alive of the watchdog. It is sent whether a watchdog is
// configured or not: after the upgrade of a package that configures one, systemd
// expects it before any agent has been told.
const Alive = daemon.SdNotifyWatchdog

// States of a service.
const (
	Ready    = daemon.SdNotifyReady
	Stopping = daemon.SdNotifyStopping
)

// Notify sends a state to the service manager. Without one it does nothing.
func Notify(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Debug("service manager: the state was not sent", "err", err)
	}
}
