package e2b

import (
	"net/http"
	"strings"

	"holdfast"
)

const (
	// metadataHeader begins the headers for metadata of files.
	metadataHeader = "X-Metadata-"
	// metadataPrefix begins the names of the extended attributes that keep it, in the
	// namespace user.
	metadataPrefix = "e2b."
	// maxMetadataName is what Linux allows for the name of an attribute, without prefixes.
	maxMetadataName = 246
)

// attributes returns the extended attributes that keep the metadata in the headers of an
// upload.
func attributes(h http.Header) (map[string]string, error) {
	all, size := map[string]string{}, 0
	for header, values := range h {
		name, ok := strings.CutPrefix(header, metadataHeader)
		if !ok {
			continue
		}
		name = strings.ToLower(name)
		if name == "" || len(name) > maxMetadataName || !printable(name) || !printable(values[0]) {
			return nil, refuse(http.StatusBadRequest, "metadata %q: a name has 1 to %d bytes, and names and values are printable ASCII", name[:min(len(name), maxMetadataName)], maxMetadataName)
		}
		all[metadataPrefix+name] = values[0]
		size += len("user."+metadataPrefix+name) + len(values[0])
	}
	if size > holdfast.MaxAttributes {
		return nil, refuse(http.StatusBadRequest, "the metadata take %d bytes, at most %d are kept", size, holdfast.MaxAttributes)
	}
	return all, nil
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// metadataOf returns the metadata of a file, nil for none.
func metadataOf(f holdfast.File) map[string]string {
	var all map[string]string
	for name, value := range f.Attributes {
		if name, ok := strings.CutPrefix(name, metadataPrefix); ok {
			if all == nil {
				all = map[string]string{}
			}
			all[name] = value
		}
	}
	return all
}
