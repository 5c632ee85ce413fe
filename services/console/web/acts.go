package web

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/services/operate/rollback"
)

// Limits of acts. A confirmation is a page that shows what an act would change, with a button.
const (
	maxConfirmations = 1000
	confirmationTime = 15 * time.Minute
	actTime          = 20 * time.Second // until a version shows the act; below writeTimeout
	maxReason        = 1000             // bytes
	actCookie        = "meshlog-console-act"
)

// confirmations are the pages that were shown and not confirmed yet. The oldest one ends if
// there are too many.
type confirmations struct {
	mu  sync.Mutex
	all []confirmation
}

// confirmation is an act as a page has shown it.
type confirmation struct {
	token, browser string // browser is the value of its cookie
	intent         rollback.Intent
	sum            string // of the plan that was shown
	ends           time.Time
}

// add returns the token of a new confirmation.
func (c *confirmations) add(of confirmation, now time.Time) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.DeleteFunc(c.all, func(o confirmation) bool { return o.ends.Before(now) })
	if len(c.all) == maxConfirmations {
		c.all = slices.Delete(c.all, 0, 1)
	}
	of.token, of.ends = rand.Text()+rand.Text(), now.Add(confirmationTime)
	c.all = append(c.all, of)
	return of.token
}

// take returns the confirmation of a token and a browser, once.
func (c *confirmations) take(token, browser string, now time.Time) (of confirmation, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.all, func(o confirmation) bool {
		return token != "" && o.token == token && o.browser == browser && now.Before(o.ends)
	})
	if i < 0 {
		return of, false
	}
	of = c.all[i]
	c.all = slices.Delete(c.all, i, i+1)
	return of, true
}

// statusError is an error with a status of HTTP.
type statusError struct {
	error
	status int
}

// refused is the error of a request that may not act.
func refused(text string) error { return statusError{errors.New(text), http.StatusForbidden} }

// mayNotAct returns why a request may not change the mesh; empty: it may. A token is for
// reading: it opens the console to other machines, and their people act with a key of their own.
func (s *Server) mayNotAct(r *http.Request) string {
	switch {
	case s.OperatorKey == "":
		return "This console only reads: it was started without --operator-key."
	case !process.IsLocal(r):
		return "Acts are for the machine of the console only, under 127.0.0.1 or localhost: use an SSH tunnel or `kubectl port-forward`."
	case s.TokenFile != "" && !process.HasToken(r, s.TokenFile) && !s.sessions.has(r, time.Now()):
		return "Acts need the token of --console-token-file, on this machine too: give it at /login."
	}
	return ""
}

// actTitles are the titles of pages that confirm an act.
var actTitles = map[string]string{
	rollback.ActRollback: "Roll back", rollback.ActFreeze: "Freeze a source", rollback.ActPin: "Pin proxies to a version",
	rollback.ActRelease: "Release", rollback.ActUnpin: "Unpin", rollback.ActApprove: "Approve",
	rollback.ActPromote: "Promote a rollout", rollback.ActAbort: "Stop a rollout",
}

// actData is a page that shows what an act would change, and asks once more.
type actData struct {
	Intent   rollback.Intent
	Button   string
	Command  string
	Plan     *rollback.Plan // nil: fields are missing
	Token    string         // of the form; empty: the request may not act
	MayNot   string         // why
	Note     string         // why the form is shown again
	Reason   string
	Complete bool
	Status   int
}

// Objects are the objects of the intent, for its field.
func (d *actData) Objects() string { return strings.Join(d.Intent.Objects, " ") }

// Takes reports whether the act has a field.
func (d *actData) Takes(field string) bool {
	return slices.Contains(map[string][]string{
		rollback.ActRollback: {"version", "namespace", "object"}, rollback.ActFreeze: {"source"}, rollback.ActPin: {"version", "proxies"},
		rollback.ActRelease: {"id"}, rollback.ActUnpin: {"id"}, rollback.ActApprove: {"id"},
		rollback.ActPromote: {"id", "all"}, rollback.ActAbort: {"id"},
	}[d.Intent.Act], field)
}

// RollBack returns the address of the page that rolls an object back to the page's version.
func (p *page) RollBack(k past.Key) string {
	return address("/act/rollback", url.Values{}, []any{"version", p.Version(), "object", command.Slashed(ident.Key(k))})
}

func intentOf(act string, q url.Values) rollback.Intent {
	return rollback.Intent{
		Act: act, Version: q.Get("version"), Namespace: q.Get("namespace"), Objects: strings.Fields(strings.Join(q["object"], " ")),
		Proxies: q.Get("proxies"), Source: q.Get("source"), ID: q.Get("id"), All: act == rollback.ActPromote && q.Get("all") == "true",
	}
}

func isComplete(i rollback.Intent) bool {
	switch i.Act {
	case rollback.ActRollback:
		return i.Version != ""
	case rollback.ActPin:
		return i.Version != "" && i.Proxies != ""
	case rollback.ActFreeze:
		return i.Source != ""
	}
	return i.ID != ""
}

// actPage shows what an act would change. It changes nothing.
func (s *Server) actPage(w http.ResponseWriter, r *http.Request) {
	p, ok := s.actOf(w, r)
	if !ok {
		return
	}
	d, err := s.propose(r.Context(), w, r, p, intentOf(r.PathValue("act"), r.URL.Query()), "")
	if err != nil {
		s.fail(w, p, err)
		return
	}
	s.show(w, p, d)
}

// HasCursor reports whether the page can be moved in time: acts and drafts are of the present.
func (p *page) HasCursor() bool {
	return p.Mesh != nil && !strings.HasPrefix(p.Path, "/act") && p.Path != whatIfPath
}

// actOf begins a page of an act.
func (s *Server) actOf(w http.ResponseWriter, r *http.Request) (*page, bool) {
	title, known := actTitles[r.PathValue("act")]
	p, err := s.begin(r, view{title: title})
	if err == nil && p.At != "" {
		err = command.Usage("acts are of the present: leave out at")
	}
	if err == nil && !known {
		err = command.NotFound("there is no page %s", r.URL.Path)
	}
	if err != nil {
		s.fail(w, p, err)
		return nil, false
	}
	return p, true
}

func (s *Server) show(w http.ResponseWriter, p *page, d *actData) {
	p.Data = d
	if d.Status != 0 {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(d.Status)
	}
	s.render(w, "act.html", p)
}

// propose plans an act, and makes a form that confirms it once.
func (s *Server) propose(ctx context.Context, w http.ResponseWriter, r *http.Request, p *page, i rollback.Intent, note string) (*actData, error) {
	d := &actData{Intent: i, Button: actTitles[i.Act], Command: i.Command(), Note: note, MayNot: s.mayNotAct(r), Complete: isComplete(i)}
	if !d.Complete {
		return d, nil
	}
	plan, end, err := s.plan(ctx, p, i)
	if err != nil {
		return nil, err
	}
	if err := end(); err != nil {
		return nil, err
	}
	d.Plan, d.Intent, d.Command = plan, plan.Intent, plan.Intent.Command()
	if d.MayNot == "" && plan.Nothing == "" {
		d.Token = s.confirmations.add(confirmation{browser: browserOf(w, r), intent: plan.Intent, sum: plan.Sum()}, p.Now)
	}
	return d, nil
}

// plan plans an act. The caller ends the plan.
func (s *Server) plan(ctx context.Context, p *page, i rollback.Intent) (plan *rollback.Plan, end func() error, err error) {
	conn, err := p.mesh.Target.Conn()
	if err != nil {
		return nil, nil, err
	}
	target := command.On(conn, p.mesh.Target.Bus.Domain).SignWith(s.OperatorKey)
	m, err := rollback.Open(ctx, target)
	if err == nil {
		plan, err = m.Plan(ctx, i)
	}
	if err != nil {
		return nil, nil, errors.Join(err, target.Close())
	}
	return plan, target.Close, nil
}

// browserOf returns the value of the cookie that binds forms to a browser, and sets one if
// there is none. A request that another site causes never has it.
func browserOf(w http.ResponseWriter, r *http.Request) string {
	if c, err := r.Cookie(actCookie); err == nil && len(c.Value) >= 26 {
		return c.Value
	}
	value := rand.Text() + rand.Text()
	http.SetCookie(w, &http.Cookie{Name: actCookie, Value: value, Path: "/act", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil})
	return value
}

// act carries out what a page has shown, if it would still change the same.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	p, ok := s.actOf(w, r)
	if !ok {
		return
	}
	seq, again, err := s.confirm(w, r, p)
	switch {
	case err != nil:
		s.fail(w, p, err)
	case again != nil:
		s.show(w, p, again)
	default:
		http.Redirect(w, r, address("/acted", url.Values{}, []any{"record", seq}), http.StatusSeeOther)
	}
}

// confirm returns the record of the act, or a page that asks again.
func (s *Server) confirm(w http.ResponseWriter, r *http.Request, p *page) (seq uint64, again *actData, err error) {
	if why := s.mayNotAct(r); why != "" {
		return 0, nil, refused(why)
	}
	browser, err := r.Cookie(actCookie)
	if err != nil {
		return 0, nil, refused("This form is not of a page that this browser was shown. Nothing was written.")
	}
	c, ok := s.confirmations.take(r.PostFormValue("token"), browser.Value, p.Now)
	if !ok || c.intent.Act != r.PathValue("act") {
		return 0, nil, refused("This form was used already, is older than 15 minutes, or is not of a page that this browser was shown. Nothing was written.")
	}
	i := c.intent
	i.Reason = strings.TrimSpace(r.PostFormValue("reason"))
	ask := func(status int, note string) (uint64, *actData, error) {
		d, err := s.propose(r.Context(), w, r, p, c.intent, note)
		if err == nil {
			d.Status, d.Reason = status, i.Reason
		}
		return 0, d, err
	}
	if i.NeedsReason() && i.Reason == "" || len(i.Reason) > maxReason {
		return ask(http.StatusBadRequest, "Say why, for those who read the log, in at most 1000 bytes. Nothing was written.")
	}
	for n := 1; ; n++ {
		plan, same, err := s.carryOut(r.Context(), p, i, c.sum, n < actAttempts)
		switch {
		case n < actAttempts && errors.Is(err, events.ErrConflict):
			continue // the log went on meanwhile: does the act still change the same?
		case err != nil:
			return 0, nil, err
		case !same:
			return ask(http.StatusConflict, "What it would change is not what you were shown: the mesh has changed meanwhile. Nothing was written.")
		}
		s.Log.Info("an act of the console", "act", i.Act, "id", cmp.Or(plan.ID, i.ID), "seq", plan.Seq, "reason", i.Reason)
		return plan.Seq, nil, nil
	}
}

// actAttempts is how often an act is planned again because the log went on between the plan and
// its records. Where it always goes on, the last plan is carried out all the same, as commands
// do: it changed what was shown each time.
const actAttempts = 5

// carryOut plans an act, and writes it if it changes what was shown and, if unchanged, the log
// does not go on meanwhile.
func (s *Server) carryOut(ctx context.Context, p *page, i rollback.Intent, shown string, unchanged bool) (plan *rollback.Plan, same bool, err error) {
	plan, end, err := s.plan(ctx, p, i)
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, end()) }()
	if plan.Sum() != shown {
		return plan, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, actTime)
	defer cancel()
	do := plan.Do
	if unchanged {
		do = plan.DoUnchanged
	}
	switch err := do(ctx); {
	case errors.Is(err, events.ErrConflict):
		return nil, false, err
	case err != nil && plan.Seq == 0:
		return nil, false, statusError{err, http.StatusConflict}
	case err != nil:
		s.Log.Warn("an act is on the log, and no version shows it yet", "act", i.Act, "seq", plan.Seq, "error", err)
	}
	return plan, true, nil
}
