package web

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/draft"
	"meshlog.dev/services/operate/past"
)

// Limits of a draft.
const (
	whatIfPath = "/what-if"
	maxDraft   = 1 << 20 // bytes of the request
	maxDeletes = 1000
	// shownChanges is how many changes of a list the page shows.
	shownChanges = 100
)

// whatIfData is a draft, and what it would do.
type whatIfData struct {
	Text, Deletes, Proxy string
	File                 string // the name of a file that was uploaded
	Note                 string // why it was not judged
	View                 *draft.View
	Status               int
}

// limitedChanges are the first changes of a list.
type limitedChanges struct {
	Changes []past.ObjectChange
	More    int
}

// Few returns the first changes of a list.
func (d *whatIfData) Few(all []past.ObjectChange) limitedChanges {
	n := min(len(all), shownChanges)
	return limitedChanges{all[:n], len(all) - n}
}

// beginWhatIf begins a page about a draft.
func (s *Server) beginWhatIf(w http.ResponseWriter, r *http.Request) (*page, bool) {
	p, err := s.begin(r, view{title: "What if"})
	if err == nil && p.At != "" {
		err = command.Usage("a draft is judged on the present: leave out at")
	}
	if err != nil {
		s.fail(w, p, err)
	}
	return p, err == nil
}

// whatIfPage shows the form.
func (s *Server) whatIfPage(w http.ResponseWriter, r *http.Request) {
	if p, ok := s.beginWhatIf(w, r); ok {
		p.Data = &whatIfData{Deletes: p.Param("delete"), Proxy: p.Param("proxy")}
		s.render(w, "what-if.html", p)
	}
}

// whatIf judges a draft, as `meshlog what-if` does. It writes nothing, so that reading is enough
// to ask; requests that another site causes are refused, as all that are not links.
func (s *Server) whatIf(w http.ResponseWriter, r *http.Request) {
	p, ok := s.beginWhatIf(w, r)
	if !ok {
		return
	}
	d, text, err := draftOf(r)
	if err == nil && d.Note == "" {
		err = s.judge(r, p, d, text)
	}
	if err != nil {
		s.fail(w, p, err)
		return
	}
	if p.Data = d; d.Status != 0 {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(d.Status)
	}
	s.render(w, "what-if.html", p)
}

// draftOf reads a form, and the text of the objects.
func draftOf(r *http.Request) (d *whatIfData, text string, err error) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind == "multipart/form-data" {
		err = r.ParseMultipartForm(maxDraft)
	} else {
		err = r.ParseForm()
	}
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		return nil, "", statusError{fmt.Errorf("the draft is too large: the console takes %d KiB; `meshlog what-if` takes more", maxDraft>>10), http.StatusRequestEntityTooLarge}
	}
	if err != nil {
		return nil, "", command.Usage("the form cannot be read: %w", err)
	}
	d = &whatIfData{Text: r.PostFormValue("objects"), Deletes: strings.TrimSpace(r.PostFormValue("delete")), Proxy: strings.TrimSpace(r.PostFormValue("proxy"))}
	text = d.Text
	if r.MultipartForm != nil && len(r.MultipartForm.File["file"]) > 0 {
		h := r.MultipartForm.File["file"][0]
		f, err := h.Open() // in memory: the request is no larger than that
		if err != nil {
			return nil, "", err
		}
		defer f.Close()
		b, err := io.ReadAll(f)
		if err != nil {
			return nil, "", err
		}
		if len(b) > 0 {
			d.File, text = h.Filename, string(b)
		}
	}
	switch {
	case d.File != "" && strings.TrimSpace(d.Text) != "":
		d.refuse("Give the objects as text or as a file, not both.")
	case strings.TrimSpace(text) == "" && d.Deletes == "":
		d.refuse("Give objects, or the names of objects that go.")
	case len(strings.Fields(d.Deletes)) > maxDeletes:
		d.refuse(fmt.Sprintf("At most %d objects can go in one draft.", maxDeletes))
	}
	return d, text, nil
}

func (d *whatIfData) refuse(why string) { d.Note, d.Status = why, http.StatusBadRequest }

// judge judges a draft.
func (s *Server) judge(r *http.Request, p *page, d *whatIfData, text string) error {
	as := ident.Shard{Source: ident.API, Instance: "default"}
	q := &draft.Question{Documents: &draft.Documents{Shard: as}, Deletes: strings.Fields(d.Deletes), As: as}
	name := "draft"
	if d.File != "" {
		name = d.File
	}
	q.Documents.Parse(name, []byte(text))
	if draft.Failed(q.Documents.Problems) {
		d.View = draft.NewView(q.Documents.Problems)
		return nil
	}
	if len(q.Documents.Items)+len(q.Documents.Problems)+len(q.Deletes) == 0 {
		d.refuse("No object is in it.")
		return nil
	}
	var err error
	if d.Proxy != "" {
		of := command.ProxyQuery{ID: d.Proxy}
		if q.Proxy, err = of.Find(r.Context(), p.mesh.Target, p.mesh.Past); err != nil {
			return err
		}
	}
	if d.View, _, err = s.drafts.Ask(r.Context(), p.mesh.Past, q); err != nil {
		return err
	}
	if q.Proxy == nil && p.Mesh.Reports != nil && !d.View.Failed() {
		d.View.Count(p.Mesh.Reports)
	}
	return nil
}
