package kube

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"holdfast"
)

// PathEnv is the environment variable that names kubeconfig files, as in PATH.
const PathEnv = "KUBECONFIG"

// kubeconfig is the file as kubectl knows it. Of two entries with the same name,
// the first one applies.
type kubeconfig struct {
	CurrentContext string  `yaml:"current-context"`
	Clusters       []entry `yaml:"clusters"`
	Users          []entry `yaml:"users"`
	Contexts       []entry `yaml:"contexts"`
}

// entry is an entry of one of the lists, which determines the field that is set.
type entry struct {
	Name    string      `yaml:"name"`
	Cluster fileCluster `yaml:"cluster"`
	User    fileUser    `yaml:"user"`
	Context fileContext `yaml:"context"`

	dir string // of its file: paths are relative to it
}

type fileContext struct {
	Cluster   string `yaml:"cluster"`
	User      string `yaml:"user"`
	Namespace string `yaml:"namespace"`
}

type fileCluster struct {
	Server     string `yaml:"server"`
	CAFile     string `yaml:"certificate-authority"`
	CAData     string `yaml:"certificate-authority-data"`
	ServerName string `yaml:"tls-server-name"`
	Insecure   bool   `yaml:"insecure-skip-tls-verify"`
	Proxy      string `yaml:"proxy-url"`
}

type fileUser struct {
	CertFile  string   `yaml:"client-certificate"`
	CertData  string   `yaml:"client-certificate-data"`
	KeyFile   string   `yaml:"client-key"`
	KeyData   string   `yaml:"client-key-data"`
	Token     string   `yaml:"token"`
	TokenFile string   `yaml:"tokenFile"`
	AsUser    string   `yaml:"as"`
	AsGroups  []string `yaml:"as-groups"`
	Username  string   `yaml:"username"`
	Exec      *plugin  `yaml:"exec"`
	Provider  any      `yaml:"auth-provider"`
}

// Load reads the configuration as kubectl does: the file at path, else the files
// in $KUBECONFIG, else ~/.kube/config, else that of the pod in which the process
// runs. An empty name selects the current context.
func Load(path, name string) (Config, error) {
	files := []string{path}
	if path == "" {
		files = defaultFiles()
	}
	var all kubeconfig
	found := false
	for _, f := range files {
		switch err := all.read(f); {
		case err == nil:
			found = true
		case errors.Is(err, os.ErrNotExist) && path == "": // as kubectl, any of them may be missing
		default:
			return Config{}, fmt.Errorf("kubeconfig: %w", err)
		}
	}
	if !found {
		if c, err := InCluster(); !errors.Is(err, ErrNoConfig) {
			return c, err
		}
		return Config{}, holdfast.WithHint(fmt.Errorf("%w: there is no %s", ErrNoConfig, strings.Join(files, ", ")), "name a file with --kubeconfig")
	}
	c, err := all.choose(name)
	if err != nil {
		return Config{}, fmt.Errorf("kubeconfig %s: %w", strings.Join(files, ", "), err)
	}
	return c, nil
}

func defaultFiles() []string {
	files := slices.DeleteFunc(filepath.SplitList(os.Getenv(PathEnv)), func(f string) bool { return f == "" })
	if len(files) > 0 {
		return files
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/"
	}
	return []string{filepath.Join(home, ".kube", "config")}
}

// read merges a file into the files read before.
func (k *kubeconfig) read(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var one kubeconfig
	if err := yaml.Unmarshal(text, &one); err != nil {
		return fmt.Errorf("%s: %s", path, yaml.FormatError(err, false, false))
	}
	for _, list := range [][]entry{one.Clusters, one.Users} {
		for i := range list {
			list[i].dir = filepath.Dir(path)
		}
	}
	k.CurrentContext = cmp.Or(k.CurrentContext, one.CurrentContext)
	k.Clusters = append(k.Clusters, one.Clusters...)
	k.Users = append(k.Users, one.Users...)
	k.Contexts = append(k.Contexts, one.Contexts...)
	return nil
}

// choose returns the Config of a context.
func (k *kubeconfig) choose(name string) (Config, error) {
	name = cmp.Or(name, k.CurrentContext)
	if name == "" {
		return Config{}, holdfast.WithHint(errors.New("there is no current-context"), "name one with --context")
	}
	chosen, ok := find(k.Contexts, name)
	if !ok {
		return Config{}, holdfast.WithHint(fmt.Errorf("there is no context %q", name), "`kubectl config get-contexts` lists them")
	}
	about := chosen.Context
	cluster, ok := find(k.Clusters, about.Cluster)
	if !ok {
		return Config{}, fmt.Errorf("context %q: there is no cluster %q", name, about.Cluster)
	}
	c := Config{Context: name, Namespace: cmp.Or(about.Namespace, "default")}
	if err := cluster.Cluster.into(&c, cluster.dir); err != nil {
		return Config{}, fmt.Errorf("cluster %q: %w", about.Cluster, err)
	}
	if about.User == "" {
		return c, nil
	}
	user, ok := find(k.Users, about.User)
	if !ok {
		return Config{}, fmt.Errorf("context %q: there is no user %q", name, about.User)
	}
	if err := user.User.into(&c, user.dir); err != nil {
		return Config{}, fmt.Errorf("user %q: %w", about.User, err)
	}
	return c, nil
}

func find(list []entry, name string) (entry, bool) {
	i := slices.IndexFunc(list, func(e entry) bool { return e.Name == name })
	if i < 0 {
		return entry{}, false
	}
	return list[i], true
}

func (f fileCluster) into(c *Config, dir string) error {
	if f.Server == "" {
		return errors.New("there is no server")
	}
	ca, err := material(dir, "certificate-authority", f.CAFile, f.CAData)
	if err != nil {
		return err
	}
	c.Server, c.CA, c.ServerName, c.Insecure, c.Proxy = f.Server, ca, f.ServerName, f.Insecure, f.Proxy
	return nil
}

func (f fileUser) into(c *Config, dir string) error {
	if f.Username != "" {
		return errors.New("username and password: API servers do not support them since Kubernetes 1.19")
	}
	if f.Provider != nil {
		return holdfast.WithHint(errors.New("auth-provider: kubectl does not support it since 1.26"), "use an exec plugin instead")
	}
	var err error
	if c.Cert, err = material(dir, "client-certificate", f.CertFile, f.CertData); err != nil {
		return err
	}
	if c.Key, err = material(dir, "client-key", f.KeyFile, f.KeyData); err != nil {
		return err
	}
	c.AsUser, c.AsGroups = f.AsUser, f.AsGroups
	switch {
	case f.Exec != nil:
		run, err := f.Exec.prepare(dir)
		if err != nil {
			return err
		}
		c.Token = run.token
	case f.TokenFile != "":
		c.Token = tokenFile(below(dir, f.TokenFile))
	case f.Token != "":
		c.Token = func(context.Context, bool) (string, error) { return f.Token, nil }
	}
	return nil
}

// material returns the data given in the kubeconfig itself, else the content of
// the file.
func material(dir, what, file, data string) ([]byte, error) {
	if data != "" {
		b, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			return nil, fmt.Errorf("%s-data: %w", what, err)
		}
		return b, nil
	}
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(below(dir, file))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return b, nil
}

func below(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}
