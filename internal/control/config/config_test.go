package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/session"
)

// load loads text as a configuration file.
func load(t *testing.T, text string, over Overrides) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "holdfast.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(t.Context(), path, over)
}

// minimal is the smallest configuration of an agent.
const minimal = "templates: [{name: web, image: web:1, port: 80}]\n"

// TestAnnotatedFileIsTheDefault compares packaging/holdfast.yaml, which documents every
// key, with the defaults.
func TestAnnotatedFileIsTheDefault(t *testing.T) {
	const file = "../../../packaging/holdfast.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Load(t.Context(), file, Overrides{Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Node, want.NodeGiven, want.Templates = "n1", true, got.Templates
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the file is not the default:\n%s", diff)
	}
	if len(got.Templates) != 1 {
		t.Fatalf("%d templates", len(got.Templates))
	}

	// Its commented settings must be valid too: every key exists.
	on := uncommented(string(text))
	if _, err := load(t, on, Overrides{}); err != nil {
		t.Fatalf("with every key: %v", err)
	}
	var all any
	if err := yaml.Unmarshal([]byte(on), &all); err != nil {
		t.Fatal(err)
	}
	for _, key := range missing("", reflect.TypeFor[Config](), []any{all}) {
		t.Errorf("%s is not in the file", key)
	}
}

// uncommented returns the annotated file with all commented settings enabled.
func uncommented(text string) string {
	var on strings.Builder
	for line := range strings.Lines(text) {
		key := strings.TrimLeft(line, " ")
		if rest, ok := strings.CutPrefix(key, "# "); ok && isSetting(rest) {
			line = strings.Repeat(" ", len(line)-len(key)) + rest
		}
		on.WriteString(line)
	}
	return on.String()
}

// missing returns the keys of a type that no YAML value has.
func missing(path string, of reflect.Type, values []any) (keys []string) {
	switch {
	case of.Kind() == reflect.Slice:
		var elements []any
		for _, v := range values {
			list, _ := v.([]any)
			elements = append(elements, list...)
		}
		return missing(path+"[]", of.Elem(), elements)
	case of.Kind() != reflect.Struct:
		return nil
	}
	for i := range of.NumField() {
		f := of.Field(i)
		key, option, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if key == "-" {
			continue
		}
		if option == "inline" {
			keys = append(keys, missing(path, f.Type, values)...)
			continue
		}
		var under []any
		for _, v := range values {
			m, _ := v.(map[string]any)
			if x, ok := m[key]; ok {
				under = append(under, x)
			}
		}
		if len(under) == 0 {
			keys = append(keys, path+"."+key)
			continue
		}
		keys = append(keys, missing(path+"."+key, f.Type, under)...)
	}
	return keys
}

// TestMissingKeysAreFound shows that the check of the file can fail.
func TestMissingKeysAreFound(t *testing.T) {
	all := map[string]any{"mounts": []any{map[string]any{"type": "tmpfs"}, map[string]any{"target": "/"}}}
	var mounts []string
	for _, key := range missing("", reflect.TypeFor[Template](), []any{all}) {
		if strings.HasPrefix(key, ".mounts") {
			mounts = append(mounts, key)
		}
	}
	if want := []string{".mounts[].source", ".mounts[].read_only"}; !cmp.Equal(mounts, want) {
		t.Errorf("got %v, want %v", mounts, want)
	}
}

// A file without settings equals no file.
func TestFileWithoutAWord(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n# yet\n"} {
		c := Default()
		if err := parse(t.Context(), []byte(text), &c); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if diff := cmp.Diff(Default(), c); diff != "" {
			t.Errorf("%q is not the default:\n%s", text, diff)
		}
	}
}

// A host can be drained with a file that is not valid for an agent.
func TestLoadHost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "holdfast.yaml")
	for _, c := range []struct {
		text string
		good bool
	}{
		{"engine: {host: 'unix:///e'}", true}, // no template, no store
		{"engine: {host: 'unix:///e'}\ntemplates: [{name: a}]", true},
		{"engine: {host: 'unix:///e'}\ndrain: {budget: 0s}", false},
		{"engin: {}", false},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := LoadHost(t.Context(), path)
		if (err == nil) != c.good || c.good && got.Engine.Host != "unix:///e" {
			t.Errorf("%q: host %q, %v", c.text, got.Engine.Host, err)
		}
	}
}

// A collector serves its metrics on the address of an agent's API, with the same rules.
func TestLoadCollector(t *testing.T) {
	path := filepath.Join(t.TempDir(), "holdfast.yaml")
	for _, c := range []struct {
		text, flag string
		listen     string // "-" is an error
	}{
		{"", "", "127.0.0.1:7071"},
		{"api: {listen: ''}", "", ""},
		{"", "none", ""},
		{"api: {listen: '127.0.0.1:1'}", "localhost:2", "localhost:2"},
		{"", "0.0.0.0:7071", "-"},
		{"api: {listen: '10.0.0.1:7071', cert_file: /c, key_file: /k}", "", "-"},
		{"api: {listen: '10.0.0.1:7071', cert_file: /c, key_file: /k, read_token_file: /t}", "", "10.0.0.1:7071"},
		{"gc: {every: 0s}", "", "-"},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := LoadCollector(t.Context(), path, Overrides{APIListen: c.flag})
		if (err == nil) != (c.listen != "-") || err == nil && got.API.Listen != c.listen {
			t.Errorf("%q with %q: %q, %v", c.text, c.flag, got.API.Listen, err)
		}
	}
}

// isSetting tells a commented setting from prose.
func isSetting(s string) bool {
	if strings.HasPrefix(s, "  - {") {
		return true
	}
	key, _, ok := strings.Cut(s, ":")
	return ok && key == strings.ToLower(key) && !strings.ContainsAny(key, " .")
}

func TestMistakesAreRefusedWithTheirPlace(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown key", minimal + "gatewayy: {}", `line 2, column 1: unknown field "gatewayy"`},
		{"unknown key further in", minimal + "gateway:\n  listem: x", `line 3, column 3: unknown field "listem"`},
		{"unknown key of a template", "templates:\n  - name: a\n    img: b", `line 3, column 5: unknown field "img"`},
		{"key twice", minimal + "node: a\nnode: b", "line 3, column 1"},
		{"not YAML", minimal + "node: [", "line 2"},
		{"a word for a number", minimal + "sessions: {boots: many}", "line 2"},
		{"a word for a time", minimal + "sessions: {idle_stop: soon}", "soon"},
		{"a word for a size", "templates: [{name: a, image: b, port: 80, memory: lots}]", "lots"},
		{"a list for a text", minimal + "node: [a]", "line 2, column 7: this wants a text; put it in quotes"},
		{"a mapping for a text", minimal + "store: {endpoints: [x:1]}", "this wants a text; put it in quotes"},
		{"a number for a time", minimal + "sessions: {idle_stop: 30}", "this wants a time such as 30s"},
		{"a number for a choice", minimal + "drain: {pause_engine: 3}", "this wants true or false"},
		{"a number out of range", minimal + "sessions: {boots: 99999999999999999999}", "is too large a number"},
		{"no template", "node: a", "templates: the list is empty"},
		{"template twice", "templates: [{name: a, image: b, port: 80}, {name: a, image: b, port: 80}]", "used twice"},
		{"no image", "templates: [{name: a, port: 80}]", "templates[0] (a): image is missing"},
		{"no port", "templates: [{name: a, image: b}]", "port: 0"},
		{"no network", "templates: [{name: a, image: b, port: 80, network: none}]", "network"},
		{"the host's network", "templates: [{name: a, image: b, port: 80, network: host}]", "one address"},
		{"another's network", "templates: [{name: a, image: b, port: 80, network: 'container:x'}]", "one address"},
		{"notices", minimal + "preempt: {gce: {enabled: true, endpoint: 'ftp://x'}}", "preempt.gce.endpoint"},
		{"readiness", "templates: [{name: a, image: b, port: 80, ready: {http: healthz}}]", "ready.http"},
		{"mount", "templates: [{name: a, image: b, port: 80, mounts: [{type: bind, source: x, target: /y}]}]", "mounts[0]: source"},
		{"privileges", "templates: [{name: a, image: b, port: 80, privileges: all}]", "privileges"},
		{"too many replicas", "templates: [{name: a, image: b, port: 80, replicas: 17}]", "replicas: 17 is not between 0 and 16"},
		{"no name of a group", "templates: [{name: A.b, image: b, port: 80, replicas: 2}]", "cannot be part of the replicas' keys"},
		{"SDKs beyond loopback", minimal + "e2b: {listen: '0.0.0.0:443', api_keys_file: /k}", "e2b.listen: 0.0.0.0:443 is not a loopback address"},
		{"SDKs without keys", minimal + "e2b: {listen: '127.0.0.1:443'}", "e2b.api_keys_file is missing"},
		{"domain of sandboxes", minimal + "e2b: {listen: '127.0.0.1:443', api_keys_file: /k, domain: 'https://x'}", "e2b.domain"},
		{"networks of webhooks", minimal + "e2b: {listen: '127.0.0.1:443', api_keys_file: /k, webhook_networks: [10.0.0.1/8]}", `e2b.webhook_networks: "10.0.0.1/8" is not a network`},
		{"user of sandboxes", minimal + "e2b: {listen: '127.0.0.1:443', api_keys_file: /k, user: 'a b'}", "e2b.user"},
		{"caught up without a group", "templates: [{name: a, image: b, port: 80, caught_up: {command: [x]}}]", "only replicas of a group"},
		{"an experiment without a share", "templates: [{name: a, image: b, port: 80}, {name: c, image: b, port: 80}]\nexperiments: [{name: x, template: a, with: c}]", "share: 0 is not over 0"},
		{"an experiment with an unknown template", "templates: [{name: a, image: b, port: 80}]\nexperiments: [{name: x, template: a, with: c, share: 1}]", `with: there is no template "c"`},
		{"an experiment whose treatment is the default", "templates: [{name: a, image: b, port: 80}, {name: c, image: b, port: 80}]\nexperiments: [{name: x, template: c, with: a, share: 1}]", "the default template"},
		{"an experiment of replicas", "templates: [{name: a, image: b, port: 80}, {name: c, image: b, port: 80, replicas: 2}]\nexperiments: [{name: x, template: a, with: c, share: 1}]", "has replicas"},
		{"an experiment by node with a template", "templates: [{name: a, image: b, port: 80}]\nexperiments: [{name: x, by: node, template: a, share: 1}]", "for experiments by session"},
		{"experiments that share a template", "templates: [{name: a, image: b, port: 80}, {name: c, image: b, port: 80}, {name: d, image: b, port: 80}]\nexperiments: [{name: x, template: a, with: c, share: 1}, {name: y, template: a, with: d, share: 1}]", "experiments: template and with"},
		{"an experiment by what does not exist", "templates: [{name: a, image: b, port: 80}]\nexperiments: [{name: x, by: key, share: 1}]", "by"},
		{"an experiment with a bad name", "templates: [{name: a, image: b, port: 80}]\nexperiments: [{name: X_, by: node, share: 1}]", "is not made of a-z"},
		{"a fork without memory", "templates: [{name: a, image: b, port: 80, fork: allowed}]", "fork: allowed needs handover: memory"},
		{"a renew without time", "templates: [{name: a, image: b, port: 80, renew: {timeout: 1ms}}]", "renew.timeout"},
		{"a group that is suspended", "templates: [{name: a, image: b, port: 80, replicas: 2, runtime: runsc, handover: memory, idle: suspend}]", "replicas"},
		{"a group in a group", "templates: [{name: a, image: b, port: 80, replicas: 2}, {name: a-7, image: b, port: 80, replicas: 2}]", "a replica of group a"},
		{"a TCP address beyond loopback", "templates: [{name: a, image: b, port: 80, replicas: 2, tcp: {listen: '0.0.0.0:80'}}]", "tcp.listen: 0.0.0.0:80 is not a loopback address"},
		{"a TCP address without one", "templates: [{name: a, image: b, port: 80, replicas: 2, tcp: {port: 80}}]", "tcp.listen"},
		{"a TCP address of another port", "templates: [{name: a, image: b, port: 80, replicas: 2, tcp: {listen: '127.0.0.1:80', port: 81}}]", "does not allow port 81"},
		{"a TCP address of a group with a key", "templates: [{name: a, image: b, port: 80, replicas: 2, tcp: {listen: '127.0.0.1:80', key: x}}]", "tcp.key: the address of a group"},
		{"a TCP address of no session", "templates: [{name: a, image: b, port: 80, tcp: {listen: '127.0.0.1:80'}}]", "tcp.key"},
		{"a TCP address of a replica", "templates: [{name: a, image: b, port: 80, tcp: {listen: '127.0.0.1:80', key: c-1}}, {name: c, image: b, port: 80, replicas: 2}]", "tcp.key: c-1 is a key of the group c"},
		{"a TCP address of another template", "templates: [{name: a, image: b, port: 80}, {name: c, image: b, port: 80, tcp: {listen: '127.0.0.1:80', key: x}}]", "would start session x from template a"},
		{"a drain of no time", "templates: [{name: a, image: b, port: 80, replicas: 2, drain_timeout: -1s}]", "drain_timeout"},
		{"a reserved variable", "templates: [{name: a, image: b, port: 80, env: {HOLDFAST_EPOCH: '9'}}]", "HOLDFAST_EPOCH"},
		{"no name of a variable", "templates: [{name: a, image: b, port: 80, env: {'A=B': c}}]", "env"},
		{"node", minimal + "node: a/b", "node"},
		{"data_dir", minimal + "data_dir: here", "data_dir"},
		{"log", minimal + "log: {level: loud}", "log.level"},
		{"fence", minimal + "store: {fence: 500ms}", "renew (1s) has to be shorter than fence"},
		{"embedded with TLS", minimal + "store: {ca_file: /ca.pem}", "embedded"},
		{"half a certificate", minimal + "gateway: {cert_file: /c.pem}", "go together"},
		{"gateway for all", minimal + "gateway: {listen: '0.0.0.0:7070'}", "not a loopback address"},
		{"gateway for all without tokens", minimal + "gateway: {listen: ':7070', cert_file: /c, key_file: /k}", "not a loopback address"},
		{"gateway for all without TLS", minimal + "gateway: {listen: ':7070', tokens_file: /t}", "not a loopback address"},
		{"a URL without a key", minimal + "gateway: {url: 'https://gw.example.org/'}", "lacks {key}"},
		{"a URL without a host", minimal + "gateway: {url: '/s/{key}/'}", "not an http or https URL"},
		{"a URL with a script", minimal + "gateway: {url: 'javascript://h/{key}'}", "not an http or https URL"},
		{"a URL with a password", minimal + "gateway: {url: 'https://a:b@h/{key}'}", "without a user"},
		{"gateway by name", minimal + "gateway: {listen: 'example.org:7070'}", "not a loopback address"},
		{"no port to listen on", minimal + "gateway: {listen: localhost}", "is not host:port"},
		{"API for all without TLS", minimal + "api: {listen: ':7071', token_file: /t}", "not a loopback address"},
		{"API for all without tokens", minimal + "api: {listen: ':7071', cert_file: /c, key_file: /k}", "not a loopback address"},
		{"fleet without a store", minimal + "fleet: {listen: '10.0.0.7:7072'}", "fleet.listen: an embedded store has no fleet"},
		{"fleet on every address", minimal + "store: {endpoints: ['e:2379']}\nfleet: {listen: ':7072'}", "fleet.advertise: no node can connect"},
		{"fleet on no port", minimal + "store: {endpoints: ['e:2379']}\nfleet: {listen: ':7072', advertise: '10.0.0.7:0'}", "fleet.advertise: no node can connect"},
		{"only advertised", minimal + "fleet: {advertise: '10.0.0.7:7072'}", "fleet.advertise: needs fleet.listen"},
		{"certificates", minimal + "store: {endpoints: ['e:2379']}\nfleet: {listen: '10.0.0.7:7072', certificates: here}", "fleet.certificates"},
		{"step without a name", step("command: [x]"), "init_steps[0] (): name"},
		{"step with a name of its own kind", step("name: a.b, command: [x]"), "init_steps[0] (a.b): name"},
		{"step without a command", step("name: a"), "init_steps[0] (a): command is missing"},
		{"step twice", step("name: a, command: [x]}, {name: a, command: [x]"), "used twice"},
		{"too many steps", step(strings.Repeat("}, {", 16)), "at most 16"},
		{"step with a negative timeout", step("name: a, image: b, timeout: -1s"), "timeout"},
		{"a step's reserved variable", step("name: a, image: b, env: {HOLDFAST_EPOCH: '9'}"), "HOLDFAST_EPOCH"},
		{"snapshot without an absolute path", "templates: [{name: a, image: b, port: 80, snapshot: {command: [save]}}]", "snapshot.command"},
		{"snapshot with a negative timeout", "templates: [{name: a, image: b, port: 80, snapshot: {command: [/x], timeout: -1s}}]", "snapshot.timeout"},
		{"snapshots", minimal + "sessions: {snapshots: -1}", "snapshots -1"},
		{"h2c", "templates: [{name: a, image: b, port: 80, upgrades: [chat, H2C]}]", "upgrades[1]: requests over h2c"},
		{"an upgrade that is no protocol", "templates: [{name: a, image: b, port: 80, upgrades: ['chat, h2c']}]", "upgrades[0]"},
		{"a port that is none", "templates: [{name: a, image: b, port: 80, ports: [3000, 65536]}]", "ports: 65536 is not between 1 and 65535"},
		{"port 0", "templates: [{name: a, image: b, port: 80, ports: [0]}]", "ports: 0 is not between 1"},
		{"a port twice", "templates: [{name: a, image: b, port: 80, ports: [3000, 3000]}]", "ports: 3000 is listed twice"},
		{"too many ports", "templates: [{name: a, image: b, port: 80, ports: [" + strings.Repeat("1, ", 64) + "1]}]", "ports: 65 ports are listed, at most 64"},
		{"a range of ports", "templates: [{name: a, image: b, port: 80, ports: 3000-4000}]", "a list of numbers such as [3000, 5173], or all"},
		{"one port", "templates: [{name: a, image: b, port: 80, ports: 3000}]", "a list of numbers such as [3000, 5173], or all"},
		{"park", minimal + "gateway: {park_per_key: 0}", "park_per_key"},
		{"boots", minimal + "sessions: {boots: 0}", "boots"},
		{"negative warm", "templates: [{name: a, image: b, port: 80, warm: -1}]", "warm: -1"},
		{"too many warm containers", "templates: [{name: a, image: b, port: 80, warm: 257}]", "0 and 256"},
		{"warm with a key in the command", "templates: [{name: a, image: b, port: 80, warm: 1, command: [/x, '{key}']}]", "warm: the command"},
		{"warm under another runtime", "templates: [{name: a, image: b, port: 80, warm: 1, runtime: runsc}]", "warm: a container of another runtime"},
		{"warm after steps", "templates: [{name: a, image: b, port: 80, warm: 1, init_steps: [{name: s, command: [/x]}]}]", "warm: init_steps"},
		{"warm with a key's volume", "templates: [{name: a, image: b, port: 80, warm: 1, mounts: [{type: volume, source: 'w-{key}', target: /w}]}]", "warm: mounts[0]: a volume"},
		{"warm with a mount in the identity directory", "templates: [{name: a, image: b, port: 80, warm: 1, mounts: [{type: tmpfs, target: /run/holdfast/x}]}]", "/run/holdfast"},
		{"networks", minimal + "sessions: {networks: -1}", "networks -1"},
		{"too many networks", minimal + "sessions: {networks: 257}", "0 to 256"},
		{"slow", minimal + "spinup: {slow: {create: -1s}}", "spinup.slow.create"},
		{"no record kept", minimal + "spinup: {keep: {count: 0}}", "spinup.keep.count"},
		{"budget", minimal + "drain: {budget: 0s}", "drain.budget"},
		{"too large", minimal + strings.Repeat("#", MaxSize), "at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := load(t, c.text, Overrides{})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, c.want)
			}
		})
	}
}

// step is a template with an init step.
func step(text string) string {
	return "templates: [{name: a, image: b, port: 80, init_steps: [{" + text + "}]}]"
}

func TestGatewayForAllNeedsTLSAndTokens(t *testing.T) {
	c, err := load(t, minimal+"gateway: {listen: '0.0.0.0:7070', cert_file: /c, key_file: /k, tokens_file: /t}", Overrides{})
	if err != nil || c.Gateway.TokensFile != "/t" {
		t.Errorf("%q, %v", c.Gateway.TokensFile, err)
	}
	_, err = load(t, minimal+"gateway: {listen: '0.0.0.0:7070', cert_file: /c, key_file: /k}", Overrides{})
	if hint := holdfast.HintOf(err); !strings.Contains(hint, "gateway.tokens_file") {
		t.Errorf("hint %q", hint)
	}
}

// Tokens of either scope are enough for an API beyond loopback.
func TestAPIForAllNeedsTLSAndOneOfTwoFiles(t *testing.T) {
	for _, key := range []string{"token_file", "read_token_file"} {
		c, err := load(t, minimal+"api: {listen: ':7071', cert_file: /c, key_file: /k, "+key+": /t}", Overrides{})
		if err != nil || c.API.TokenFile+c.API.ReadTokenFile != "/t" {
			t.Errorf("%s: %+v, %v", key, c.API, err)
		}
	}
}

func TestFlagsComeBeforeTheFile(t *testing.T) {
	c, err := load(t, minimal+"node: file\ngateway: {listen: '127.0.0.1:1'}", Overrides{
		Node: "flag", EtcdEndpoints: "a:2379,b:2379", EtcdCA: "/ca", GatewayListen: "[::1]:2", APIListen: "none", Socket: "/s", EngineHost: "unix:///e",
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Node != "flag" || c.Gateway.Listen != "[::1]:2" || c.API.Listen != "" || c.API.Socket != "/s" || c.Engine.Host != "unix:///e" ||
		!cmp.Equal(c.Store.Endpoints, []string{"a:2379", "b:2379"}) || c.Store.CAFile != "/ca" {
		t.Errorf("%+v", c)
	}
}

func TestFileThatIsMissing(t *testing.T) {
	_, err := Load(t.Context(), "/nowhere/holdfast.yaml", Overrides{})
	if !errors.Is(err, os.ErrNotExist) || holdfast.HintOf(err) == "" {
		t.Errorf("named: %v (hint %q)", err, holdfast.HintOf(err))
	}
}

func TestTemplatesAsSessionsTakeThem(t *testing.T) {
	c, err := load(t, `
templates:
  - name: a
    image: b:1
    command: [serve, "{key}"]
    env: {KEY: "{key}"}
    mounts: [{type: bind, source: "/srv/{key}", target: /data, read_only: true}]
    memory: 512MiB
    cpus: 1.5
    pids: 99
    port: 8080
    ready: {http: /ok, timeout: 3s}
    network: mine
    init: false
    privileges: gain
    init_steps: [{name: first, command: [prepare, "{key}"], env: {A: b}}, {name: second, image: "tools:1", timeout: 1s}]
    snapshot: {command: [/save, "{key}"]}
    websocket: keep
    upgrades: [chat/2]
    ports: [3000, 5173]
    kept_sockets: {tell: hello, tell_as: ping, buffer: 1KiB}
    runtime: runsc
`, Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	want := []session.Template{{
		Name: "a", Image: "b:1", Command: []string{"serve", "{key}"}, Env: map[string]string{"KEY": "{key}"},
		Mounts: []engine.Mount{{Type: "bind", Source: "/srv/{key}", Target: "/data", ReadOnly: true}},
		Memory: 512 << 20, CPUs: 1.5, PIDs: 99, Port: 8080,
		Ready: session.Readiness{HTTPPath: "/ok", Timeout: 3 * time.Second}, Network: "mine", NoInit: true, AllowSUID: true,
		Steps: []session.Step{
			{Name: "first", Command: []string{"prepare", "{key}"}, Env: map[string]string{"A": "b"}, Timeout: 5 * time.Minute},
			{Name: "second", Image: "tools:1", Timeout: time.Second},
		},
		Snapshot: session.Snapshot{Command: []string{"/save", "{key}"}, Timeout: 10 * time.Second},
		Runtime:  "runsc",
		Renew:    session.Renew{Timeout: 10 * time.Second},
		Ports:    holdfast.Ports{List: []int{3000, 5173}},
		Upgrades: []string{"chat/2"},
		Keep:     &holdfast.KeepSockets{Time: 30 * time.Second, Buffer: 1024, Tell: "hello", Ping: true},
	}}
	if diff := cmp.Diff(want, c.SessionTemplates()); diff != "" {
		t.Error(diff)
	}
}

// The gateway serves ports only if a template lists some, and then all templates' own.
func TestPortsOfTheGateway(t *testing.T) {
	for text, want := range map[string]holdfast.Ports{
		"port: 80":                       {},
		"port: 80, ports: []":            {},
		"port: 80, ports: [3000]":        {List: []int{3000, 80, 8080}},
		"port: 80, ports: all":           {All: true},
		"port: 80, ports: &p [1, 65535]": {List: []int{1, 65535, 80, 8080}},
	} {
		c, err := load(t, "templates: [{name: a, image: b, "+text+"}, {name: c, image: b, port: 8080}]", Overrides{})
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, c.Gateway.Ports); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

func TestSleepIsChecked(t *testing.T) {
	for text, want := range map[string]string{
		"sleep: {after: 1s}": "",
		"sleep: {after: 5m, idle_by: data}, network: bridge": "",
		"sleep: {after: 1h, idle_by: data}":                  "", // idle_stop concerns sessions without connections
		"sleep: {after: 30m}":                                "stopped before they sleep",
		"sleep: {after: 10ms}":                               "at least 1s",
		"sleep: {after: -1s}":                                "at least 1s",
		"sleep: {idle_by: data}":                             "at least 1s",
		"sleep: {after: 5m, idle_by: cpu}":                   "neither connections nor data",
		"sleep: {after: 5m}, replicas: 2":                    "never idle",
		"sleep: {after: 5m}, runtime: runsc":                 "default runtime",
		`sleep: {after: 5m, wake: ["0 3 * * *", "CRON_TZ=Europe/Berlin 30 7 * * 1-5", "@daily"]}`: "",
		`sleep: {after: 5m, wake: ["0 25 * * *"]}`:                                                "above maximum",
		`sleep: {after: 5m, wake: ["0 0 30 2 *"]}`:                                                "never comes",
		`sleep: {after: 5m, wake: ["CRON_TZ=UTC"]}`:                                               "not a time",
		`sleep: {after: 5m, wake: ["CRON_TZ=Nowhere/City 0 3 * * *"]}`:                            "Nowhere",
		`sleep: {wake: ["0 3 * * *"]}`:                                                            "never sleep",
		"sleep: {after: 5m}, runtime: runsc, handover: memory":                                    "",
		"sleep: {after: 5m, idle_by: data}, runtime: runsc, handover: memory":                     "needs websocket: keep",
		"sleep: {after: 5m, idle_by: data}, runtime: runsc, handover: memory, websocket: keep":    "",
	} {
		_, err := load(t, "templates: [{name: a, image: b, port: 80, "+text+"}]", Overrides{})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestMovingIsChecked(t *testing.T) {
	for bad, want := range map[string]string{
		"websocket: hold":               "neither close nor keep",
		"handover: memory":              "needs a runtime",
		"handover: warm":                "neither fresh nor memory",
		"idle: sleep":                   "neither stop nor suspend",
		"idle: suspend":                 "needs handover: memory",
		"runtime: /usr/bin/runsc":       "not a name of a runtime",
		"kept_sockets: {tell_as: pong}": "neither text nor ping",
		"kept_sockets: {time: -1s}":     "below 0",
		"kept_sockets: {buffer: 65MiB}": "to 64MiB",
		"runtime: runsc\n    handover: memory\nengine: {name: containerd}":                        "must be moving.runtime",
		"runtime: a\n    handover: memory\nengine: {name: containerd, runtimes: {a: /bin/runsc}}": "must be moving.runtime",
		"kept_sockets: {tell: \"" + strings.Repeat("x", 1025) + "\"}":                             "room for 1024 bytes",
		"kept_sockets: {tell_as: ping, tell: \"" + strings.Repeat("x", 126) + "\"}":               "room for 125 bytes",
	} {
		_, err := load(t, "templates:\n  - name: a\n    image: b\n    port: 80\n    "+bad+"\n", Overrides{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v", bad, err)
		}
	}
}

func TestRuntimesAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		"{runsc: runsc}":           "not an absolute path",
		"{/bin/runsc: /bin/x}":     "not a name of a runtime",
		"{runsc: }":                "not an absolute path",
		"{runsc: /bin/runsc}":      "",
		"{a: /bin/a, b.c: /usr/b}": "",
	} {
		_, err := load(t, "engine: {name: containerd, runtimes: "+text+"}\ntemplates: [{name: a, image: b, port: 80}]\n", Overrides{})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	c, err := load(t, "engine: {name: containerd, runtimes: {a: /m}}\nmoving: {runtime: /m}\ntemplates: [{name: a, image: b, port: 80, runtime: a, handover: memory}]\n", Overrides{})
	if err != nil || c.Engine.Runtimes["a"] != "/m" {
		t.Errorf("%+v, %v", c.Engine, err)
	}
}

func TestSuspendedIsChecked(t *testing.T) {
	const all = `key_file: /k, put: [/p, "{file}", "{name}"], get: [/g, "{name}", "{file}"]`
	for bad, want := range map[string]string{
		"dir: here":                    "not an absolute path",
		"keep: 1s":                     "at least 1m",
		"space: 0":                     "at least 1 byte",
		"timeout: 0s":                  "at least 1s",
		"shared: true":                 "needs a named dir",
		"put: [/bin/cp]":               "key_file is missing",
		"shared: true, dir: /d":        "key_file is missing",
		all:                            "drop is missing",
		all + `, drop: [rm, "{name}"]`: "not an absolute path of a program",
		all + `, drop: [/bin/rm]`:      "{name} is missing",
		`key_file: /k, put: [/p, "{name}"], get: [/g, "{name}", "{file}"], drop: [/d, "{name}"]`: "{file} is missing",
	} {
		_, err := load(t, minimal+"\nmoving: {suspended: {"+bad+"}}\n", Overrides{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := load(t, minimal+"\nmoving: {suspended: {"+all+", drop: [/d, \"{name}\"]}}\n", Overrides{}); err != nil {
		t.Error(err)
	}
	for _, more := range []string{"", "handover: memory, "} {
		if _, err := load(t, "templates:\n  - {name: a, image: b, port: 80, runtime: r, "+more+"mounts: [{type: tmpfs, target: /run/holdfast}]}\n", Overrides{}); err == nil || !strings.Contains(err.Error(), "receives its identity") {
			t.Errorf("a mount in the identity directory: %v", err)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(minimal)
	f.Add("templates: [{name: a, image: b, port: 80, memory: 1e309}]\nsessions: {idle_stop: -1s}")
	f.Add("a: &a [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		c := Default()
		if parse(t.Context(), []byte(text), &c) == nil {
			_ = c.Validate() // with or without an error, but without a panic
		}
	})
}

// TestPageHasTheAnnotatedFile keeps docs/configuration.md, to which error hints refer,
// equal to the file.
func TestPageHasTheAnnotatedFile(t *testing.T) {
	file, err := os.ReadFile("../../../packaging/holdfast.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```yaml\n"+string(file)+"```") {
		t.Error("docs/configuration.md does not have packaging/holdfast.yaml in it")
	}
}

// TestNetworkOfATemplate: one of Holdfast's unless another one is named. Under another runtime it
// has to be named, unless the runtime is Holdfast's script.
func TestNetworkOfATemplate(t *testing.T) {
	for named, want := range map[string]string{"": "", "pooled": "", "bridge": "bridge", "mine": "mine"} {
		c := Config{Templates: []Template{{Name: "a", Network: named}}}
		got := c.SessionTemplates()[0]
		if got.Network != want || got.Pooled != (want == "") {
			t.Errorf("network: %q is %q, pooled %v", named, got.Network, got.Pooled)
		}
		c.Templates[0].Runtime = "runsc"
		if got := c.SessionTemplates()[0]; got.Network != want || got.Pooled != (named == "pooled") {
			t.Errorf("network: %q under runsc is %q, pooled %v", named, got.Network, got.Pooled)
		}
		if joins := c.Joins(); joins != (named == "pooled") {
			t.Errorf("network: %q under runsc joins a network of Holdfast's: %v", named, joins)
		}
		c.Templates[0].Handover = "memory"
		if got := c.SessionTemplates()[0]; got.Network != want || got.Pooled != (want == "") {
			t.Errorf("network: %q with handover: memory is %q, pooled %v", named, got.Network, got.Pooled)
		}
		c.Engine.Name = Containerd
		if c.Joins() {
			t.Errorf("network: %q joins a network beside containerd", named)
		}
	}
}
