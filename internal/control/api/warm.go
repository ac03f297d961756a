package api

import (
	"context"
	"net/http"
	"strings"

	"holdfast"
)

// WarmImages is the answer to everything about the images that a node keeps
// present on its host.
type WarmImages struct {
	Images []holdfast.WarmImage `json:"images"` // those of the configuration first
}

// WarmRequest names images.
type WarmRequest struct {
	Images []string `json:"images"`
}

// WarmBackend is what the agent does about such images, for a Backend.
type WarmBackend interface {
	// WarmImages lists them.
	WarmImages(ctx context.Context) ([]holdfast.WarmImage, error)
	// AddWarmImages keeps more from now on, also after a restart. It does
	// not wait until they are there.
	AddWarmImages(ctx context.Context, images []string) error
	// RemoveWarmImages keeps them no more; they stay on the host.
	// holdfast.ErrNotFound.
	RemoveWarmImages(ctx context.Context, images []string) error
}

// warmRoutes are those about images that are kept present.
func warmRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/warm-images", id: "listWarmImages", summary: "The images that this node keeps present on its host.",
			access: forReader, limit: limitAsk, answer: WarmImages{}, handle: (*server).warmImages},
		{method: "POST", path: "/v1/warm-images", id: "addWarmImages", summary: "Keep more images present; answers before they are there.",
			access: forAdmin, limit: limitAsk, request: WarmRequest{}, answer: WarmImages{}, handle: (*server).addWarmImages},
		{method: "POST", path: "/v1/warm-images/remove", id: "removeWarmImages", summary: "Keep images no more. They stay on the host.",
			access: forAdmin, limit: limitAsk, request: WarmRequest{}, answer: WarmImages{}, handle: (*server).removeWarmImages},
	}
}

func (s *server) warmImages(w http.ResponseWriter, r *http.Request) error {
	images, err := s.b.WarmImages(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, WarmImages{notNil(images)})
}

func (s *server) addWarmImages(w http.ResponseWriter, r *http.Request) error {
	return s.changeWarmImages(w, r, s.b.AddWarmImages)
}

func (s *server) removeWarmImages(w http.ResponseWriter, r *http.Request) error {
	return s.changeWarmImages(w, r, s.b.RemoveWarmImages)
}

func (s *server) changeWarmImages(w http.ResponseWriter, r *http.Request, change func(context.Context, []string) error) error {
	var q WarmRequest
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
	return s.warmImages(w, r)
}
