package containerd

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// resolvers are the files with a host's name servers. systemd-resolved's file with
// the real servers is last; the first file has its stub on loopback.
var resolvers = [...]string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// resolvFile is a container's /etc/resolv.conf (resolv.conf(5)): the host's, without
// name servers that listen on the host's loopback, which a container cannot reach.
func resolvFile(network string) []byte {
	var last []byte
	for _, file := range resolvers {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // a host without name servers
		}
		if network == "host" {
			return text
		}
		var servers bool
		if last, servers = withoutLoopback(text); servers {
			return last
		}
	}
	return last
}

// withoutLoopback drops name servers on loopback, and reports whether any is
// left.
func withoutLoopback(text []byte) (out []byte, servers bool) {
	for line := range bytes.Lines(text) {
		words := strings.Fields(string(line))
		if len(words) >= 2 && words[0] == "nameserver" {
			if addr, err := netip.ParseAddr(words[1]); err == nil && addr.IsLoopback() {
				continue
			}
			servers = true
		}
		out = append(out, line...)
	}
	return out, servers
}

// hostsFile is a container's /etc/hosts (hosts(5)).
func hostsFile(network, host string, s state) []byte {
	if network == "host" {
		text, err := os.ReadFile("/etc/hosts")
		if err == nil {
			return text
		}
	}
	text := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	if s.Address.IsValid() {
		text += fmt.Sprintf("%s\t%s\n", s.Address, host)
	}
	return []byte(text)
}
