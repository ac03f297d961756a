package lab

import (
	"archive/tar"
	"fmt"
	"os/exec"
	"regexp"

	"holdfast"
)

// nginxConfig answers each request with 200. It starts one worker for each CPU, and writes
// nothing outside /tmp.
const nginxConfig = `user root;
worker_processes auto;
pid /tmp/nginx.pid;
events {}
http {
  access_log off;
  client_body_temp_path /tmp/body;
  proxy_temp_path /tmp/proxy;
  fastcgi_temp_path /tmp/fastcgi;
  uwsgi_temp_path /tmp/uwsgi;
  scgi_temp_path /tmp/scgi;
  server { listen 80; return 200 "ok\n"; }
}
`

// Nginx returns an image of this host's nginx with its libraries, which listens on port 80.
func Nginx() (Image, error) {
	path, err := exec.LookPath("nginx")
	if err != nil {
		return Image{}, holdfast.WithHint(fmt.Errorf("make an image of nginx: %w", err), "apt-get install nginx-light")
	}
	out, err := exec.Command("ldd", path).Output()
	if err != nil {
		return Image{}, fmt.Errorf("list the libraries of %s: %w", path, err)
	}
	img := Image{
		Ref:     "nginx:latest",
		Files:   map[string]string{"/usr/sbin/nginx": path, "/etc/passwd": "/etc/passwd", "/etc/group": "/etc/group"},
		Command: []string{"/usr/sbin/nginx", "-e", "stderr", "-c", "/etc/nginx.conf", "-g", "daemon off;"},
	}
	for _, lib := range libraries.FindAllString(string(out), -1) {
		img.Files[lib] = lib
	}
	img.More = func(w *tar.Writer) error {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "etc/nginx.conf", Mode: 0o644, Size: int64(len(nginxConfig))}); err != nil {
			return err
		}
		_, err := w.Write([]byte(nginxConfig))
		return err
	}
	return img, nil
}

// libraries matches the paths in the output of ldd(1).
var libraries = regexp.MustCompile(`/[^ ()]+\.so[^ ()]*`)
