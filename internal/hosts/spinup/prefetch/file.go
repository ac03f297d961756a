package prefetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"holdfast/internal/platform/atomicfile"
)

// FileName is the name of the list's file in an agent's data directory.
const FileName = "prefetch.json"

// maxFile limits the bytes that are read: MaxImages names of 512 bytes, and some
// margin.
const maxFile = 1 << 18

// file is the content of the file.
type file struct {
	Images []string `json:"images"`
}

// ReadList reads the list; a missing file is an empty list.
func ReadList(path string) ([]string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the images to keep: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, fmt.Errorf("read the images to keep: %w", err)
	}
	var list file
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("read the images to keep: %s: %w", path, err)
	}
	if len(list.Images) > MaxImages {
		return nil, fmt.Errorf("read the images to keep: %s: %w", path, ErrFull)
	}
	for _, image := range list.Images {
		if err := check(image); err != nil {
			return nil, fmt.Errorf("read the images to keep: %s: %w", path, err)
		}
	}
	return list.Images, nil
}

// writeList writes the list atomically: after a power cut it is the old list or
// the new one.
func writeList(path string, images []string) error {
	text, err := json.Marshal(file{images})
	if err != nil {
		return err
	}
	if err := atomicfile.Write(path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("save the list of images: %w", err)
	}
	return nil
}
