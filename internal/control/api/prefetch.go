package api

import (
	"errors"
	"net/http"
	"strings"

	"holdfast"
	"holdfast/internal/hosts/spinup/prefetch"
)

// Prefetcher keeps images present on the host. *prefetch.Keeper is one.
type Prefetcher interface {
	// List lists the images, those of the configuration first.
	List() []prefetch.Entry
	// Add adds images, also after a restart. It does not wait for their pulls.
	Add(images ...string) error
	// Remove removes images from the list; they stay on the host.
	// holdfast.ErrNotFound.
	Remove(images ...string) error
}

// PrefetchImages lists the images that a node keeps present on its host.
type PrefetchImages struct {
	Images []prefetch.Entry `json:"images"` // those of the configuration first
}

// PrefetchRequest names images.
type PrefetchRequest struct {
	Images []string `json:"images"`
}

type prefetchHandlers struct{ images Prefetcher }

func prefetchRoutes(p Prefetcher) []route {
	h := prefetchHandlers{p}
	return []route{
		{method: "GET", path: "/v1/prefetch", id: "listPrefetchImages", summary: "The images that this node keeps present on its host.",
			access: forReader, limit: limitAsk, answer: PrefetchImages{}, handle: asking(h.list)},
		{method: "POST", path: "/v1/prefetch", id: "addPrefetchImages", summary: "Keep more images present; answers before they are pulled.",
			access: forAdmin, limit: limitAsk, request: PrefetchRequest{}, answer: PrefetchImages{}, handle: doing(h.change(Prefetcher.Add))},
		{method: "POST", path: "/v1/prefetch/remove", id: "removePrefetchImages", summary: "Stop keeping images present. They stay on the host.",
			access: forAdmin, limit: limitAsk, request: PrefetchRequest{}, answer: PrefetchImages{}, handle: doing(h.change(Prefetcher.Remove))},
	}
}

func (h prefetchHandlers) list(*http.Request) (PrefetchImages, error) {
	return PrefetchImages{notNil(h.images.List())}, nil
}

// change returns a handler that changes the list and answers with the new one.
func (h prefetchHandlers) change(change func(Prefetcher, ...string) error) func(*http.Request, PrefetchRequest) (PrefetchImages, error) {
	return func(r *http.Request, q PrefetchRequest) (PrefetchImages, error) {
		note(r.Context(), "images", bounded(strings.Join(q.Images, " ")))
		if len(q.Images) == 0 {
			return PrefetchImages{}, badRequest("images: the list is empty")
		}
		err := change(h.images, q.Images...)
		if is[*prefetch.NameError](err) || errors.Is(err, prefetch.ErrFixed) {
			err = &Error{Code: CodeBadRequest, Message: err.Error(), Advice: holdfast.HintOf(err)}
		}
		if err != nil {
			return PrefetchImages{}, err
		}
		return h.list(r)
	}
}
