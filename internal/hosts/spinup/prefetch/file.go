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

// FileName is the list's in an agent's data directory.
const FileName = "prefetch.json"

// maxFile bounds what is read: MaxImages names of 512 bytes, and room.
const maxFile = 1 << 18

// file is what is on disk.
type file struct {
	Images []string `json:"images"`
}

// ReadList reads the list; one that is not there is empty.
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

// writeList writes the list so that a power cut leaves the old one or the new.
func writeList(path string, images []string) error {
	text, err := json.Marshal(file{images})
	if err != nil {
		return err
	}
	if err := atomicfile.Write(path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("keep the list of images: %w", err)
	}
	return nil
}
