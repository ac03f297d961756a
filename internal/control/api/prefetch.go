package api

import (
	"context"
	"net/http"
	"strings"

	"holdfast/internal/hosts/spinup/prefetch"
)

// PrefetchImages is the answer to everything about the images that a node keeps
// present on its host.
type PrefetchImages struct {
	Images []prefetch.Entry `json:"images"` // those of the configuration first
}

// PrefetchRequest names images.
type PrefetchRequest struct {
	Images []string `json:"images"`
}

// PrefetchBackend is what the agent does about such images, for a Backend.
type PrefetchBackend interface {
	// PrefetchImages lists them.
	PrefetchImages(ctx context.Context) ([]prefetch.Entry, error)
	// AddPrefetchImages keeps more from now on, also after a restart. It does
	// not wait until they are there.
	AddPrefetchImages(ctx context.Context, images []string) error
	// RemovePrefetchImages keeps them no more; they stay on the host.
	// holdfast.ErrNotFound.
	RemovePrefetchImages(ctx context.Context, images []string) error
}

// prefetchRoutes are those about images that are kept present.
func prefetchRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/prefetch", id: "listPrefetchImages", summary: "The images that this node keeps present on its host.",
			access: forReader, limit: limitAsk, answer: PrefetchImages{}, handle: (*server).prefetchImages},
		{method: "POST", path: "/v1/prefetch", id: "addPrefetchImages", summary: "Keep more images present; answers before they are there.",
			access: forAdmin, limit: limitAsk, request: PrefetchRequest{}, answer: PrefetchImages{}, handle: (*server).addPrefetchImages},
		{method: "POST", path: "/v1/prefetch/remove", id: "removePrefetchImages", summary: "Keep images no more. They stay on the host.",
			access: forAdmin, limit: limitAsk, request: PrefetchRequest{}, answer: PrefetchImages{}, handle: (*server).removePrefetchImages},
	}
}

func (s *server) prefetchImages(w http.ResponseWriter, r *http.Request) error {
	images, err := s.b.PrefetchImages(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, PrefetchImages{notNil(images)})
}

func (s *server) addPrefetchImages(w http.ResponseWriter, r *http.Request) error {
	return s.changePrefetchImages(w, r, s.b.AddPrefetchImages)
}

func (s *server) removePrefetchImages(w http.ResponseWriter, r *http.Request) error {
	return s.changePrefetchImages(w, r, s.b.RemovePrefetchImages)
}

func (s *server) changePrefetchImages(w http.ResponseWriter, r *http.Request, change func(context.Context, []string) error) error {
	var q PrefetchRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	note(r.Context(), "images", bounded(strings.Join(q.Images, " ")))
	if len(q.Images) == 0 {
		return &Error{Code: CodeBadRequest, Message: "images: there is none"}
	}
	if err := change(r.Context(), q.Images); err != nil {
		return err
	}
	return s.prefetchImages(w, r)
}
