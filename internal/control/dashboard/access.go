package dashboard

import (
	"errors"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"holdfast/internal/control/api"
)

// policy allows a page to load files of this server, and nothing else. A page has no
// inline script or style.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// protect sets the security headers of every answer.
func protect(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// handler answers a request. If it returns an error it has written nothing.
type handler func(w http.ResponseWriter, r *http.Request) error

// reader is a handler for callers that may read.
type reader func(w http.ResponseWriter, r *http.Request, c api.Caller) error

// open returns a handler without access control. It refuses requests that another
// site's page made the browser send.
func (d *Dashboard) open(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		protect(w.Header())
		err := d.checkOrigin(r)
		if err == nil {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(formLimit + askLimit))
			err = h(w, r)
		}
		if err != nil {
			d.problem(w, r, err)
		}
	}
}

func (d *Dashboard) forReader(h reader) http.HandlerFunc {
	return d.open(func(w http.ResponseWriter, r *http.Request) error {
		c, err := api.CallerOf(d.o.Access, r)
		e, ok := errors.AsType[*api.Error](err)
		switch {
		case ok && e.Code == api.CodeUnauthorized && r.Method == http.MethodGet && d.o.Access.Logins != nil && !strings.HasPrefix(r.URL.Path, "/live/"):
			http.Redirect(w, r, "/login?"+url.Values{"next": {r.URL.RequestURI()}}.Encode(), http.StatusSeeOther)
			return nil
		case err != nil:
			return err
		}
		return h(w, r, c)
	})
}

// checkOrigin refuses a request that another site's page made the browser send. Only a
// link on another site may lead here: sessions are another port of, perhaps, the same
// host, and browsers take them for the same site.
func (d *Dashboard) checkOrigin(r *http.Request) error {
	from := r.Header.Get("Sec-Fetch-Site")
	foreign := from == "cross-site" || from == "same-site"
	link := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	if d.cross.Check(r) != nil || foreign && !link {
		return &api.Error{Code: api.CodeCrossOrigin, Message: "the request comes from another site's page"}
	}
	return nil
}

// form reads a form's fields, with limits of size and time.
func form(w http.ResponseWriter, r *http.Request) error {
	rc := http.NewResponseController(w)
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != "application/x-www-form-urlencoded" {
		return &api.Error{Code: api.CodeBadMedia, Message: "the body is not declared as a form"}
	}
	_ = rc.SetReadDeadline(time.Now().Add(formLimit))
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	err = r.ParseForm()
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &api.Error{Code: api.CodeTooLarge, Message: "the form is too large"}
	}
	if err != nil {
		return &api.Error{Code: api.CodeBadRequest, Message: "the form: " + err.Error()}
	}
	_ = rc.SetReadDeadline(time.Time{})
	return nil
}

func (d *Dashboard) loginPage(w http.ResponseWriter, r *http.Request) error {
	if d.o.Access.Logins == nil {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return nil
	}
	return write(w, http.StatusOK, loginForm(d.frame("Log in", "", api.Caller{}), localPath(r.URL.Query().Get("next")), ""))
}

func (d *Dashboard) login(w http.ResponseWriter, r *http.Request) error {
	select {
	case d.forms <- struct{}{}:
		defer func() { <-d.forms }()
	default:
		return &api.Error{Code: api.CodeBusy, Message: "too many logins at this moment"}
	}
	if err := form(w, r); err != nil {
		return err
	}
	next := localPath(r.PostForm.Get("next"))
	if logins := d.o.Access.Logins; logins != nil && logins.Login(w, r, r.PostForm.Get("token")) != nil {
		return write(w, http.StatusUnauthorized, loginForm(d.frame("Log in", "", api.Caller{}), next, "This agent does not know that token."))
	}
	http.Redirect(w, r, next, http.StatusSeeOther)
	return nil
}

func (d *Dashboard) logout(w http.ResponseWriter, r *http.Request) error {
	if d.o.Access.Logins != nil {
		d.o.Access.Logins.Logout(w, r)
	}
	http.Redirect(w, r, "/login", http.StatusSeeOther)
	return nil
}

// localPath returns a path of this server, "/" for any other address.
func localPath(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(u.Path, "//") || strings.ContainsAny(next, "\\\t\r\n") {
		return "/"
	}
	return (&url.URL{Path: u.Path, RawQuery: u.RawQuery}).String()
}
