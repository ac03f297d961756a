package process

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"holdfast/internal/platform/linux/kfile"
)

// NewRegistry returns a registry with the metrics of the Go runtime and of the process.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// KernelRelease returns the release of the kernel, as uname -r does. proc is the mount
// point of the proc file system. It is "" if the file cannot be read.
func KernelRelease(proc string) string {
	b, err := kfile.Read(proc+"/sys/kernel/osrelease", 256)
	if err != nil || len(b) == 0 {
		return ""
	}
	return string(b[:len(b)-1])
}
