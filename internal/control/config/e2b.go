package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"sync"

	"holdfast"
)

// E2B is the listener for the SDKs of E2B (docs/e2b.md).
type E2B struct {
	Listen      string `yaml:"listen"`        // TCP; "" for none
	Domain      string `yaml:"domain"`        // of the API and of sandboxes, with a port if it is not that of the scheme
	APIKeysFile string `yaml:"api_keys_file"` // file with the keys that clients send
	CertFile    string `yaml:"cert_file"`     // PEM; for api.<domain> and *.<domain>
	KeyFile     string `yaml:"key_file"`
	User        string `yaml:"user"` // of the image, for commands and files that name none
	// WebhookNetworks are networks such as 127.0.0.0/8 that events of sandboxes may be
	// posted to, beside public addresses, and without TLS.
	WebhookNetworks []string `yaml:"webhook_networks"`
}

// sandboxDomain is a host name, and a port that is not the scheme's.
var sandboxDomain = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,180}[a-z0-9])?(:[0-9]{1,5})?$`)
})

// userName is a user of a container: a name, or an id.
var userName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}$`) })

func (e E2B) validate() error {
	if (e.CertFile == "") != (e.KeyFile == "") {
		return errors.New("e2b: cert_file and key_file go together")
	}
	if e.Listen == "" {
		return nil
	}
	loopback, err := listenAddress("e2b.listen", e.Listen)
	switch {
	case err != nil:
		return err
	case !loopback && e.CertFile == "":
		return holdfast.WithHint(fmt.Errorf("e2b.listen: %s is not a loopback address", e.Listen),
			"beyond loopback it needs TLS: set e2b.cert_file and e2b.key_file")
	case e.APIKeysFile == "":
		return holdfast.WithHint(errors.New("e2b.api_keys_file is missing"), "the file has an API key in each line; docs/e2b.md makes one")
	case !sandboxDomain().MatchString(e.Domain):
		return holdfast.WithHint(fmt.Errorf("e2b.domain: %q is not a host name", e.Domain), "such as e2b.example.org, or e2b.example.org:8443")
	case !userName().MatchString(e.User):
		return fmt.Errorf("e2b.user: %q is not the name of a user", e.User)
	}
	_, err = e.Networks()
	return cmp.Or(err, absolute("e2b.api_keys_file", e.APIKeysFile))
}

// Networks returns WebhookNetworks.
func (e E2B) Networks() (all []netip.Prefix, err error) {
	for _, text := range e.WebhookNetworks {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return nil, holdfast.WithHint(fmt.Errorf("e2b.webhook_networks: %q is not a network", text), "such as 127.0.0.0/8 or fd00::/8")
		}
		all = append(all, p)
	}
	return all, nil
}
