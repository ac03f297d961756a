package token

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast"
	"holdfast/internal/platform/keyfile"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func secret(t testing.TB, id string) Secret {
	t.Helper()
	s, err := NewSecret(id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func sign(t testing.TB, s Secret, g Grant) string {
	t.Helper()
	text, err := Sign(s, g)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func forAlice(now time.Time, ttl time.Duration) Grant {
	return Grant{Keys: []holdfast.SessionKey{"alice"}, IssuedAt: now, Expires: now.Add(ttl)}
}

func TestTokenContainsWhatWasSigned(t *testing.T) {
	s := secret(t, "k1")
	want := Grant{Keys: []holdfast.SessionKey{"alice", "bob"}, Prefix: "team-", IssuedAt: noon, Expires: noon.Add(time.Hour)}
	got, err := Verify([]Secret{s}, sign(t, s, want), noon)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for key, allowed := range map[holdfast.SessionKey]bool{
		"alice": true, "bob": true, "team-1": true, "alic": false, "alice2": false, "team": false, "xteam-1": false, "carol": false,
	} {
		if got.Allows(key, 0) != allowed {
			t.Errorf("%s: allowed is %v", key, !allowed)
		}
	}
	if (Grant{}).Allows("alice", 0) {
		t.Error("an empty grant allows alice")
	}
}

func TestTokenWithPorts(t *testing.T) {
	s := secret(t, "k1")
	for _, tt := range []struct {
		ports   holdfast.Ports
		allowed string
	}{
		{holdfast.Ports{}, "[true false false]"},
		{holdfast.Ports{List: []int{3000}}, "[false true false]"},
		{holdfast.Ports{List: []int{0, 65535}}, "[true false true]"},
		{holdfast.Ports{All: true}, "[true true true]"},
	} {
		g := forAlice(noon, time.Hour)
		g.Ports = tt.ports
		got, err := Verify([]Secret{s}, sign(t, s, g), noon)
		if err != nil || !cmp.Equal(got.Ports, tt.ports) {
			t.Errorf("%+v became %+v, %v", tt.ports, got.Ports, err)
		}
		allowed := []bool{got.Allows("alice", 0), got.Allows("alice", 3000), got.Allows("alice", 65535)}
		if fmt.Sprint(allowed) != tt.allowed || got.Allows("bob", 0) || got.Allows("bob", 3000) || got.Allows("alice", 70000) {
			t.Errorf("%+v allows %v", tt.ports, allowed)
		}
	}
}

// Other programs can create tokens: this one was made with a shell, openssl and base64, as
// described in docs/connect-tokens.md.
func TestTokenMadeElsewhere(t *testing.T) {
	s := Secret{"k1", []byte("0123456789abcdef0123456789abcdef")}
	const made = "hf1.k1.eyJrZXlzIjpbImFsaWNlIl0sImlhdCI6MTc3NzYzNjgwMCwiZXhwIjoxNzc3NjQwNDAwfQ.D44MXY77jfBBVSR15AoeSmA2BNSmnkKk4Xb-fijj26E"
	g, err := Verify([]Secret{s}, made, noon.Add(time.Minute))
	if err != nil || !g.Allows("alice", 0) || !g.Expires.Equal(noon.Add(time.Hour)) {
		t.Errorf("%+v, %v", g, err)
	}
	if ours := sign(t, s, forAlice(noon, time.Hour)); ours != made {
		t.Errorf("Sign returned %s", ours)
	}
}

func TestEveryChangeBreaksAToken(t *testing.T) {
	s := secret(t, "k1")
	good := sign(t, s, forAlice(noon, time.Hour))
	for i := range len(good) {
		for _, c := range []byte{good[i] ^ 1, good[i] ^ 4, '\n', '.', 'A'} {
			if c == good[i] {
				continue
			}
			bad := good[:i] + string(c) + good[i+1:]
			if _, err := Verify([]Secret{s}, bad, noon); !errors.Is(err, ErrInvalid) {
				t.Fatalf("%q: %v", bad, err)
			}
		}
		if _, err := Verify([]Secret{s}, good[:i], noon); !errors.Is(err, ErrInvalid) {
			t.Fatalf("cut to %d bytes: %v", i, err)
		}
	}
	for _, bad := range []string{good + "=", good + "\n", " " + good, good + "." + good, strings.Repeat("a", MaxLen+1)} {
		if _, err := Verify([]Secret{s}, bad, noon); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := Verify([]Secret{secret(t, "k1")}, good, noon); !errors.Is(err, ErrInvalid) {
		t.Errorf("another secret of the same id: %v", err)
	}
	if _, err := Verify(nil, good, noon); !errors.Is(err, ErrInvalid) {
		t.Errorf("without a secret: %v", err)
	}
}

// The bounds also apply to signed payloads, because the program that signs may be wrong.
func TestSignedNonsenseIsRefused(t *testing.T) {
	s := secret(t, "k1")
	at := noon.Unix()
	for _, text := range []string{
		``, `null`, `{}`, `[]`, `{"keys":["alice"]}`,
		fmt.Sprintf(`{"iat":%d,"exp":%d}`, at, at+60),
		fmt.Sprintf(`{"keys":["Alice"],"iat":%d,"exp":%d}`, at, at+60),
		fmt.Sprintf(`{"keys":["alice"],"methods":["GET"],"iat":%d,"exp":%d}`, at, at+60),
		fmt.Sprintf(`{"keys":["alice"],"iat":%d,"exp":%d}{}`, at, at+60),
		fmt.Sprintf(`{"prefix":"-","iat":%d,"exp":%d}`, at, at+60),
		fmt.Sprintf(`{"keys":["alice"],"iat":%d,"exp":%d}`, at, at),
		fmt.Sprintf(`{"keys":["alice"],"iat":%d,"exp":%d}`, at, at+int64(MaxTTL/time.Second)+1),
		fmt.Sprintf(`{"keys":["alice"],"iat":%d,"exp":9223372036854775807}`, at),
		fmt.Sprintf(`{"keys":["alice"],"ports":[],"iat":%d,"exp":%d}`, at, at+60),
		fmt.Sprintf(`{"keys":["alice"],"ports":"every","iat":%d,"exp":%d}`, at, at+60),
		fmt.Sprintf(`{"keys":["alice"],"ports":[65536],"iat":%d,"exp":%d}`, at, at+60),
		fmt.Sprintf(`{"keys":["alice"],"ports":[1,1],"iat":%d,"exp":%d}`, at, at+60),
		fmt.Sprintf(`{"keys":["alice"],"ports":3000,"iat":%d,"exp":%d}`, at, at+60),
		fmt.Sprintf(`{"keys":["alice"],"iat":-9223372036854775808,"exp":%d}`, at),
	} {
		signed := Version + ".k1." + encoding.EncodeToString([]byte(text))
		token := signed + "." + encoding.EncodeToString(s.mac(signed))
		if g, err := Verify([]Secret{s}, token, noon); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %+v, %v", text, g, err)
		}
	}
}

func TestOnlyGoodGrantsAreSigned(t *testing.T) {
	s := secret(t, "k1")
	many := make([]holdfast.SessionKey, MaxKeys+1)
	for i := range many {
		many[i] = holdfast.SessionKey(fmt.Sprintf("key-%d", i))
	}
	long := make([]holdfast.SessionKey, MaxKeys)
	for i := range long {
		long[i] = holdfast.SessionKey(strings.Repeat("x", holdfast.MaxKeyLen))
	}
	for name, change := range map[string]func(*Grant){
		"unknown":     func(g *Grant) { g.Keys = nil },
		"no key":      func(g *Grant) { g.Keys = []holdfast.SessionKey{"a/b"} },
		"many":        func(g *Grant) { g.Keys = many },
		"prefix":      func(g *Grant) { g.Prefix = "Team" },
		"hyphens":     func(g *Grant) { g.Prefix = "--" },
		"long prefix": func(g *Grant) { g.Prefix = strings.Repeat("x", holdfast.MaxKeyLen+1) },
		"over before": func(g *Grant) { g.Expires = g.IssuedAt },
		"ports":       func(g *Grant) { g.Ports.List = []int{-1} },
		"for ever":    func(g *Grant) { g.Expires = g.IssuedAt.Add(MaxTTL + time.Second) },
	} {
		g := forAlice(noon, time.Hour)
		change(&g)
		if _, err := Sign(s, g); err == nil {
			t.Errorf("%s: %+v was signed", name, g)
		}
	}
	g := forAlice(noon, time.Hour)
	g.Keys = long
	if text := sign(t, s, g); len(text) > MaxLen {
		t.Errorf("%d bytes", len(text))
	}
}

func TestTokenIsValidForItsTimeAndTheSkew(t *testing.T) {
	path := secretsFile(t, secret(t, "k1"))
	synctest.Test(t, func(t *testing.T) {
		v, err := OpenVerifier(path, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		s := v.secrets.Get()[0]
		text := sign(t, s, forAlice(time.Now(), time.Minute))
		early := sign(t, s, forAlice(time.Now().Add(Skew+time.Second), time.Minute))
		if _, err := v.Verify(early); !errors.Is(err, ErrInvalid) {
			t.Errorf("from the future: %v", err)
		}
		time.Sleep(time.Second)
		if _, err := v.Verify(early); err != nil {
			t.Errorf("signed by a clock that is ahead: %v", err)
		}
		time.Sleep(59*time.Second + Skew - time.Nanosecond)
		if _, err := v.Verify(text); err != nil {
			t.Errorf("at its end: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if _, err := v.Verify(text); !errors.Is(err, ErrExpired) {
			t.Errorf("after its end: %v", err)
		}
	})
}

func secretsFile(t testing.TB, secrets ...Secret) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	writeSecrets(t, path, secrets...)
	return path
}

func writeSecrets(t testing.TB, path string, secrets ...Secret) {
	t.Helper()
	text := "# id secret\n\n"
	for _, s := range secrets {
		text += s.Line() + "\n"
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestRotation(t *testing.T) {
	old, young := secret(t, "2025"), secret(t, "2026")
	path := secretsFile(t, old)
	synctest.Test(t, func(t *testing.T) {
		v, err := OpenVerifier(path, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		byOld, byYoung := sign(t, old, forAlice(time.Now(), time.Hour)), sign(t, young, forAlice(time.Now(), time.Hour))
		check := func(step string, oldCounts, youngCounts bool) {
			t.Helper()
			time.Sleep(keyfile.Every)
			_, e1 := v.Verify(byOld)
			_, e2 := v.Verify(byYoung)
			if (e1 == nil) != oldCounts || (e2 == nil) != youngCounts {
				t.Errorf("%s: old %v, young %v", step, e1, e2)
			}
		}
		check("before", true, false)
		writeSecrets(t, path, old, young)
		check("told", true, true)
		writeSecrets(t, path, young, old)
		check("signs", true, true)
		writeSecrets(t, path, young)
		check("after", false, true)
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		check("a file that others can read leaves what was", false, true)
	})
}

func TestSecretsFile(t *testing.T) {
	a, b := secret(t, "a"), secret(t, "b")
	got, err := parseSecrets("# first\n" + a.Line() + "\n\n  " + b.Line() + " \r\n")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]Secret{a, b}, got); d != "" {
		t.Error(d)
	}
	for name, c := range map[string]struct{ text, want string }{
		"empty":     {"", "no secret"},
		"comment":   {"# " + a.Line(), "no secret"},
		"one word":  {"a", "line 1"},
		"words":     {a.Line() + "\n" + b.Line() + " x", "line 2"},
		"bad id":    {"a.b " + strings.Fields(a.Line())[1], "line 1"},
		"no base64": {"a ???", "not valid base64"},
		"short":     {"a c2hvcnQ=", "has 5 bytes"},
		"twice":     {a.Line() + "\n" + a.Line(), "twice"},
	} {
		if _, err := parseSecrets(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var many strings.Builder
	for i := range maxSecrets + 1 {
		many.WriteString(secret(t, fmt.Sprint("k", i)).Line() + "\n")
	}
	if _, err := parseSecrets(many.String()); err == nil {
		t.Error("too many secrets were accepted")
	}
	path := secretsFile(t, a)
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSecrets(path); err == nil || holdfast.HintOf(err) != "chmod 600 "+path {
		t.Errorf("a file that the group can read: %v", err)
	}
}

func TestSecretsStayOutOfLogs(t *testing.T) {
	s := secret(t, "")
	text := strings.Fields(s.Line())[1]
	for _, printed := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v", s, s, s), fmt.Sprint([]Secret{s})} {
		if strings.Contains(printed, text) || strings.Contains(printed, fmt.Sprint(s.Key)) || !strings.Contains(printed, s.ID) {
			t.Errorf("printed as %s", printed)
		}
	}
	if _, err := NewSecret("a b"); err == nil {
		t.Error("an invalid id was accepted")
	}
	_, err := parseSecrets("a " + text + "=")
	if err == nil || strings.Contains(err.Error(), text) {
		t.Errorf("the error is %v", err)
	}
}

// An unsigned text is never valid, and no text causes a panic.
func FuzzVerify(f *testing.F) {
	s := Secret{"k1", []byte("0123456789abcdef0123456789abcdef")}
	f.Add(sign(f, s, forAlice(noon, time.Hour)))
	f.Add("hf1.k1..")
	f.Add("hf1.k1.e30.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Fuzz(func(t *testing.T, text string) {
		g, err := Verify([]Secret{s}, text, noon)
		if err != nil {
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrExpired) {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		cut := strings.LastIndexByte(text, '.')
		if again := text[:cut] + "." + encoding.EncodeToString(s.mac(text[:cut])); again != text || g.check() != nil {
			t.Fatalf("%q is valid: %+v", text, g)
		}
	})
}

// Every accepted payload keeps the bounds and can be signed again.
func FuzzPayload(f *testing.F) {
	f.Add(`{"keys":["alice"],"iat":1777636800,"exp":1777640400}`)
	f.Add(`{"prefix":"team-","iat":1,"exp":2}`)
	f.Add(`{"keys":["a"],"ports":[0,80],"iat":1,"exp":2}`)
	f.Add(`{"keys":["a"],"ports":"all","iat":1,"exp":2}`)
	f.Add(`{"keys":null,"Prefix":"a","iat":1e3,"exp":2000}`)
	s := Secret{"k1", []byte("0123456789abcdef0123456789abcdef")}
	f.Fuzz(func(t *testing.T, text string) {
		g, err := parsePayload([]byte(text))
		if err != nil {
			return
		}
		if !json.Valid([]byte(text)) {
			t.Fatalf("%q is no JSON", text)
		}
		again, err := Sign(s, g)
		if err != nil {
			t.Fatalf("%+v cannot be signed again: %v", g, err)
		}
		same, err := Verify([]Secret{s}, again, g.IssuedAt)
		if err != nil || !cmp.Equal(g.Expires, same.Expires) {
			t.Fatalf("%+v became %+v, %v", g, same, err)
		}
	})
}
