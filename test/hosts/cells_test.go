package hosts

import (
	"os/exec"
	"strings"
)

// cell is a kind of host: a column of the matrix.
type cell struct {
	name  string
	title string // for readers of docs/hosts.md
	suite string // Debian's name of the release
	// engine prepares the machine's engine, and returns when it answers; nil is Debian's own.
	engine func(h *host)
	// keeps is true if a restart of the engine leaves its containers running.
	keeps bool
	// containerd is true if the engine is containerd without Docker.
	containerd bool
	// remaps is true if the engine maps the containers' users to others of the host.
	remaps bool
	// lacks holds the rows for which such a host has nothing to test, and why.
	lacks map[string]string
	// config is a script that changes the shipped configuration for this kind of host.
	config string
	// refusal is a part of the error with which the agent refuses such a host. No row but
	// Refused runs then.
	refusal string
}

func cells() []cell {
	return []cell{
		{name: "debian-12", title: "Debian 12, docker.io", suite: "bookworm"},
		{name: "debian-12-moby", title: "Debian 12, the newest Docker", suite: "bookworm", engine: newestDocker(nil), lacks: newest},
		{name: "debian-12-moby-overlay2", title: "Debian 12, the newest Docker with overlay2 and nftables", suite: "bookworm", engine: newestDocker(map[string]any{
			"features": map[string]any{"containerd-snapshotter": false}, "storage-driver": "overlay2", "firewall-backend": "nftables",
		}), lacks: newest},
		{name: "debian-12-containerd", title: "Debian 12, the newest containerd without Docker", suite: "bookworm", engine: newestContainerd, keeps: true, containerd: true,
			config: `sed -i 's|^  name: docker .*|  name: containerd|; s|^  # runtimes: .*|  runtimes: {runsc-holdfast: /var/lib/holdfast/runsc-holdfast}|' /etc/holdfast/holdfast.yaml`,
			lacks: map[string]string{
				"drills":         sameKernel["drills"],
				"engine-upgrade": newest["engine-upgrade"],
				"job":            "jobs need Docker (engines.md)",
				"doctor":         "the row's container is made by Docker's client",
				"published":      "containerd does not publish ports of containers",
				"stopped":        "only Holdfast's own containers are collected",
				"oomd":           "the containers' control groups belong to no unit that systemd-oomd watches",
			}},
		{name: "debian-12-live-restore", title: "Debian 12, docker.io with live-restore", suite: "bookworm", keeps: true, engine: dockerOption("live-restore", true), lacks: sameKernel},
		{name: "debian-12-userns", title: "Debian 12, docker.io with userns-remap", suite: "bookworm", remaps: true, engine: dockerOption("userns-remap", "default"), lacks: sameKernel},
		{name: "debian-12-rootless", title: "Debian 12, docker.io rootless", suite: "bookworm", engine: rootlessDocker, refusal: "the engine is rootless",
			config: "sed -i 's|^  # host: .*|  host: unix:///run/user/1000/docker.sock|' /etc/holdfast/holdfast.yaml"},
		{name: "debian-12-podman", title: "Debian 12, Podman's Docker socket", suite: "bookworm", engine: podman, refusal: "the engine is Podman"},
		{name: "debian-13", title: "Debian 13, docker.io", suite: "trixie"},
	}
}

// sameKernel is what hosts lack whose kernel is that of another host.
var sameKernel = map[string]string{"drills": "The drills depend on the kernel, not on the engine: see the column of the same kernel with docker.io"}

// newest is what hosts lack whose kernel is that of another host, and whose engine is the newest.
var newest = map[string]string{"drills": sameKernel["drills"], "engine-upgrade": "The engine is the newest"}

// dockerOption adds an option to the daemon's configuration and restarts it.
func dockerOption(name string, value any) func(*host) {
	return func(h *host) {
		h.engineOption(name, value)
		h.run("systemctl restart docker")
	}
}

// newestDocker replaces Debian's Docker, containerd and runc by those of moby.sh, whose image
// store is containerd's if no option says otherwise.
func newestDocker(options map[string]any) func(*host) {
	return func(h *host) {
		h.moby()
		h.replace("docker", "/opt/moby/dockerd -H fd://")
		for name, value := range options {
			h.engineOption(name, value)
		}
		// Docker keeps the image store of existing data. Debian's has left rules of iptables that
		// drop forwarded packets, and a Docker with nftables does not know them. Nor does it turn
		// forwarding on.
		h.run(`systemctl mask containerd; rm -rf /var/lib/docker; nft flush ruleset
echo net.ipv4.ip_forward=1 >/etc/sysctl.d/forward.conf; sysctl --system; systemctl daemon-reload; systemctl start docker`)
	}
}

// moby stops Debian's engine, and brings the programs of moby.sh to /opt/moby.
func (h *host) moby() {
	h.Helper()
	// Some of the programs are symbolic links.
	packed, err := exec.CommandContext(h.Context(), "tar", "-C", made(h.T, "moby.sh"), "-ch", ".").Output()
	if err != nil {
		h.Fatalf("tar: %v", err)
	}
	h.write("/opt/moby.tar", packed)
	h.run(`systemctl stop docker.socket docker containerd
mkdir /opt/moby; tar -C /opt/moby -xf /opt/moby.tar; rm /opt/moby.tar`)
	// A runc that was built without libseccomp-dev refuses seccomp profiles.
	if _, err := h.Do(h.Context(), "/opt/moby/runc --version | grep -q libseccomp"); err != nil && !h.cell.containerd {
		h.engineOption("seccomp-profile", "unconfined")
	}
}

// replace makes a unit start a program of /opt/moby, from its next start.
func (h *host) replace(unit, command string) {
	h.Helper()
	h.write("/etc/systemd/system/"+unit+".service.d/newest.conf", []byte(`[Service]
Environment=PATH=/opt/moby:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart=
ExecStart=`+command+"\n"))
}

// newestContainerd removes Docker, and replaces Debian's containerd by that of moby.sh.
func newestContainerd(h *host) {
	h.moby()
	h.replace("containerd", "/opt/moby/containerd")
	h.run("systemctl mask docker.socket docker; systemctl daemon-reload; systemctl restart containerd; ctr version")
}

// rootlessDocker runs Debian's Docker as a user, and makes it the default of the client.
func rootlessDocker(h *host) {
	h.run(`systemctl disable --now docker.socket docker containerd
useradd -m -s /bin/bash user; loginctl enable-linger user
until test -S /run/user/1000/bus; do sleep 1; done
runuser -u user -- env XDG_RUNTIME_DIR=/run/user/1000 systemd-run --user --unit=docker -p Delegate=yes \
	--setenv=PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/share/docker.io/contrib/dockerd-rootless.sh
docker context create rootless --docker host=unix:///run/user/1000/docker.sock; docker context use rootless`)
	h.awaited("the engine answers", "docker info")
}

// podman puts Podman's socket in the place of Docker's, as Debian's package podman-docker does.
func podman(h *host) {
	h.run(`systemctl disable --now docker.socket docker; systemctl enable --now podman.socket
echo 'L+ /run/docker.sock - - - - /run/podman/podman.sock' >/etc/tmpfiles.d/podman.conf
systemd-tmpfiles --create podman.conf; docker info`)
}

// versionsOf reads what the machine consists of.
func versionsOf(h *host) map[string]string {
	one := func(script string) string { return strings.TrimSpace(h.run(script)) }
	all := map[string]string{
		"kernel":  one("uname -r"),
		"systemd": one("systemctl --version | sed -n '1s/systemd \\([^ ]*\\).*/\\1/p'"),
		"cgroup":  one("stat -f -c %T /sys/fs/cgroup | sed 's/cgroup2fs/v2/'"),
	}
	if h.cell.containerd {
		all["engine"], all["image store"] = one("/opt/moby/containerd --version | cut -d ' ' -f 3"), "overlayfs"
		return all
	}
	all["cgroup"] += ", " + one("docker info -f '{{.CgroupDriver}}'")
	all["engine"], all["image store"] = h.dockerVersion(), one("docker info -f '{{.Driver}}'")
	return all
}

func (h *host) dockerVersion() string {
	h.Helper()
	return strings.TrimSpace(h.run("docker version -f '{{.Server.Version}}'"))
}
