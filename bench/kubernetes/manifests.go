package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"

	"holdfast"
	"holdfast/internal/hosts/kube"
)

// collection is the path at which objects of a kind are created. %s is the namespace.
func collection(kind string) (string, bool) {
	const rbac, admission = "/apis/rbac.authorization.k8s.io/v1/", "/apis/admissionregistration.k8s.io/v1/"
	path, ok := map[string]string{
		"Namespace":                        "/api/v1/namespaces",
		"ServiceAccount":                   "/api/v1/namespaces/%s/serviceaccounts",
		"ConfigMap":                        "/api/v1/namespaces/%s/configmaps",
		"ClusterRole":                      rbac + "clusterroles",
		"ClusterRoleBinding":               rbac + "clusterrolebindings",
		"Role":                             rbac + "namespaces/%s/roles",
		"RoleBinding":                      rbac + "namespaces/%s/rolebindings",
		"ValidatingAdmissionPolicy":        admission + "validatingadmissionpolicies",
		"ValidatingAdmissionPolicyBinding": admission + "validatingadmissionpolicybindings",
		"DaemonSet":                        "/apis/apps/v1/namespaces/%s/daemonsets",
	}[kind]
	return path, ok
}

// Manifests returns the resources of the kustomization.yaml in a directory, in their order.
func Manifests(dir string) ([]map[string]any, error) {
	top, err := documents(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		return nil, holdfast.WithHint(err, "--manifests names the directory deploy/kubernetes of Holdfast's sources")
	}
	var all []map[string]any
	for _, o := range top {
		files, _ := o["resources"].([]any)
		for _, file := range files {
			some, err := documents(filepath.Join(dir, fmt.Sprint(file)))
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s names no resources", filepath.Join(dir, "kustomization.yaml"))
	}
	return all, nil
}

func documents(file string) ([]map[string]any, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all []map[string]any
	d := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var o map[string]any
		err := d.Decode(&o)
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", file, err)
		case o != nil:
			all = append(all, o)
		}
	}
}

// Apply creates the objects of a directory. Existing objects stay unchanged.
func Apply(ctx context.Context, c *kube.Client, dir string) error {
	all, err := Manifests(dir)
	if err != nil {
		return err
	}
	for _, o := range all {
		kind, _ := o["kind"].(string)
		path, ok := collection(kind)
		if !ok {
			return fmt.Errorf("%s: objects of kind %q are not known here", dir, kind)
		}
		if strings.Contains(path, "%s") {
			meta, _ := o["metadata"].(map[string]any)
			path = fmt.Sprintf(path, meta["namespace"])
		}
		err := c.Raw(ctx, http.MethodPost, path, "application/json", o, nil)
		if err != nil && kube.Code(err) != http.StatusConflict {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	return nil
}
