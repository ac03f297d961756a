package config

import (
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/hosts/gc"
)

// settings returns all values of a configuration, in the order of the file.
func settings(c Config) []Setting { return below("", reflect.ValueOf(c)) }

// below returns the settings in the value of a key.
func below(key string, v reflect.Value) []Setting {
	if x, ok := plain(v); ok {
		return []Setting{{Key: key, Value: x}}
	}
	var out []Setting
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			name, option, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
			switch {
			case name == "-":
			case option == "inline":
				out = append(out, below(key, v.Field(i))...)
			default:
				out = append(out, below(join(key, name), v.Field(i))...)
			}
		}
	case reflect.Slice: // of mappings
		if v.Len() == 0 {
			return []Setting{{Key: key, Value: []string{}}}
		}
		for i := range v.Len() {
			out = append(out, below(fmt.Sprintf("%s[%d]", key, i), v.Index(i))...)
		}
	case reflect.Map: // the environment of a container
		if v.Len() == 0 {
			return []Setting{{Key: key, Value: []string{}}}
		}
		env, _ := v.Interface().(map[string]string)
		for _, name := range slices.Sorted(maps.Keys(env)) {
			out = append(out, Setting{Key: join(key, name), Hidden: true})
		}
	}
	return out
}

// plain returns a value without settings below it, in the syntax of the file.
func plain(v reflect.Value) (any, bool) {
	switch x := v.Interface().(type) {
	case time.Duration:
		return TimeText(x), true
	case Bytes:
		return sizeText(int64(x)), true
	case gc.Amount:
		if x.Percent > 0 {
			return x.String(), true
		}
		return sizeText(x.Bytes), true
	case holdfast.Ports:
		if x.All {
			return "all", true
		}
		return texts(x.List), true
	case *bool:
		return x != nil && *x, true
	case string:
		return withoutPassword(x), true
	}
	switch v.Kind() {
	case reflect.String:
		return v.String(), true
	case reflect.Bool:
		return v.Bool(), true
	case reflect.Int, reflect.Int64:
		return v.Int(), true
	case reflect.Float64:
		return v.Float(), true
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.String {
			return nil, false
		}
		list := make([]string, v.Len())
		for i := range list {
			list[i] = withoutPassword(v.Index(i).String())
		}
		return list, true
	}
	return nil, false
}

// texts returns numbers as a list of texts.
func texts(numbers []int) []string {
	list := make([]string, len(numbers))
	for i, n := range numbers {
		list[i] = strconv.Itoa(n)
	}
	return list
}

// TimeText formats a time in short form: 30m for Go's 30m0s.
func TimeText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// sizeText formats a size in the largest exact unit.
func sizeText(n int64) any {
	for _, u := range []struct {
		name string
		size int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n != 0 && n%u.size == 0 {
			return fmt.Sprintf("%d%s", n/u.size, u.name)
		}
	}
	return n
}

// withoutPassword hides the password of a URL.
func withoutPassword(s string) string {
	if u, err := url.Parse(s); err == nil && u.User != nil {
		return u.Redacted()
	}
	return s
}
