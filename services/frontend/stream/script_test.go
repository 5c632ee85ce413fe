package stream_test

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/xds"
)

// TestScripts runs every section of testdata/*.txtar: the client's requests, the
// served worlds, and the responses that the stream must send. Lines:
//
//	grpc                        the client is a gRPC library
//	delta                       the stream speaks the delta protocol
//	only TYPE                   the stream is for one type
//	world N: cds a@1 b@1!dns; eds a@1; lds l@1>a; rds r@1>a,b
//	                            serves this world: NAME@CONTENT>CLUSTERS; !dns,
//	                            ^SECRETS after that: it waits for these;
//	                            !sds and !static are clusters without EDS, !big
//	                            has 1.5 MB; -NAME is left out by a quarantine
//	ask TYPE [names] [version=N|version=TEXT] [has=NAME@CONTENT]
//	                            sends the first request of a type, with the
//	                            version (in delta: versions) of the content of
//	                            world N, or in delta of one content; NAME@0 is
//	                            the empty resource; version=N! as a stream
//	                            without CDS sent it
//	sub TYPE names              subscribes to names, in delta
//	unsub TYPE names            unsubscribes from names, in delta
//	get TYPE resources          requires this response next; NAME@0 is the empty
//	                            resource, -NAME a removal
//	ack TYPE [names]            ACKs the last response of a type
//	ack-late TYPE               ACKs the response before it; ack@2 and nack@2
//	                            answer the second response
//	nack TYPE message           NACKs the last response
//	nack-late TYPE message      NACKs the response before it
//	sticky TYPE message         ACKs it with the error of an earlier response
//	again TYPE [names]          repeats the nonce of the response before the last
//	bare TYPE [names]           sends a request without nonce
//	other URL [names]           requests a type that is not served
//	absent URL names            requires that these are removed next
//	wait DURATION               lets time pass
//	head confirmed|away         answers the question for the head of the chain
//	held names                  requires that removed clusters linger
//	event NAME                  requires an event since the last such line
//	status TYPE sent|acked|waits
//	                            requires that all was sent, or applied, or not
//	awaits TYPE secrets         requires that the type waits for their keys
//	contents TYPE resources|none
//	                            requires what the client was sent, each with
//	                            applied, sent, due, held-back, lingering after ":"
//	rejected TYPE NAME N had CONTENT
//	                            requires that the rejection of a name stands, and
//	                            that the client has that content of world N instead
//	wants ID...                 requires that the stream has asked for the keys of
//	                            these Secrets only
//	key ID here|coming|gone     where the private key of a Secret is, which the world
//	                            has as ID!key; coming, if no line says it
//	applied N                   requires the oldest applied world among the types,
//	                            followed by "all" if the client has applied all
//
// Two single quotes are the empty name. A response that no line requires is an
// error. After a line that ends with " &", the script runs the next line before it
// checks that.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata: %v, %v", files, err)
	}
	for _, file := range files {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, section := range ar.Files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar")+"/"+section.Name, func(t *testing.T) {
				if err := runScript(string(section.Data)); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// TestEmptyScript checks that a script fails if a requirement is not met, if a line
// is not a command, or if the script requires nothing.
func TestEmptyScript(t *testing.T) {
	const begin = "world 1: cds a@1; eds a@1\nask CDS\n"
	const first = begin + "get CDS a@1\n"
	if err := runScript(first); err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{
		"", "# only a comment\n", "world 1: cds a@1\n", begin, begin + "get CDS\n", first + "get EDS a@1\n", first + "event Acked\n",
		first + "status LDS acked\n", first + "status CDS\n", first + "contents CDS\n", first + "contents EDS\n", first + "applied\n",
		first + "held a\n", first + "hold\n", first + "hold CDS\n", first + "ack XDS\n",
	} {
		if err := runScript(script); err == nil {
			t.Errorf("this script passes:\n%s", script)
		}
	}
}

func runScript(text string) error {
	r := newScript()
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		hasty := strings.HasSuffix(line, " &")
		line = strings.TrimSuffix(line, " &")
		if !strings.HasPrefix(line, "get ") && !strings.HasPrefix(line, "absent ") && !strings.HasPrefix(line, "event ") && !r.hasty {
			if err := r.quiet(); err != nil {
				return fmt.Errorf("before line %d, %q: %w", i+1, line, err)
			}
		}
		r.hasty = hasty
		if err := r.line(line); err != nil {
			return fmt.Errorf("line %d, %q: %w", i+1, line, err)
		}
	}
	if err := r.quiet(); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	if r.stream == nil {
		return errors.New("the client sends no request")
	}
	return nil
}

// script drives a Stream.
type script struct {
	cfg    stream.Config
	stream *stream.Stream
	now    time.Time
	worlds []content.View // world N is worlds[N-1]
	text   map[xds.Sum]string
	last   map[ident.ResourceType][]stream.Response
	names  map[ident.ResourceType][]string
	// the version that the client has of each type
	version map[ident.ResourceType]string
	events  []string
	hasty   bool
	keys    map[string]stream.KeyState // by the text of the Secret; KeyComing unless a script says something else
	wanted  map[string]string          // the names of the Secrets whose keys the stream asked for, by their texts
}

func newScript() *script {
	r := &script{
		now: time.Unix(1_000_000, 0), text: map[xds.Sum]string{},
		last: map[ident.ResourceType][]stream.Response{}, names: map[ident.ResourceType][]string{},
		version: map[ident.ResourceType]string{}, keys: map[string]stream.KeyState{}, wanted: map[string]string{},
	}
	r.cfg = stream.Config{Linger: 30 * time.Second, Past: r.past(), Secret: r.secret, Observe: func(e stream.Event) {
		r.events = append(r.events, [...]string{"Acked", "Nacked", "Stale", "Unsupported", "Downgrade", "Unmatched", "Suspect", "TooLarge", "Retaken"}[e.Kind])
	}}
	return r
}

// secret returns a Secret with its key.
func (r *script) secret(res *xds.Resource) (*xds.Resource, stream.KeyState) {
	r.wanted[r.text[res.Sum]] = res.Name
	state, known := r.keys[r.text[res.Sum]]
	if !known {
		return nil, stream.KeyComing
	}
	return &xds.Resource{Name: res.Name, Sum: res.Sum, Pieces: xds.PiecesOf(&xds.Encoded{})}, state
}

// past yields the worlds before the current one, newest first.
func (r *script) past() iter.Seq[content.View] {
	return func(yield func(content.View) bool) {
		for i := len(r.worlds) - 2; i >= 0; i-- {
			if !yield(r.worlds[i]) {
				return
			}
		}
	}
}

func (r *script) quiet() error {
	if r.stream == nil {
		return nil
	}
	if got, ok := r.stream.Next(r.now); ok {
		return fmt.Errorf("unexpected: %s", r.print(got))
	}
	if at := r.stream.Wake(); !at.IsZero() && !at.After(r.now) {
		return errors.New("nothing is due, but Wake returns a time that has passed")
	}
	return nil
}

func (r *script) line(line string) error {
	words := strings.Fields(line)
	rest := strings.TrimSpace(strings.TrimPrefix(line, words[0]))
	switch words[0] {
	case "grpc":
		r.cfg.GRPC = true
		return nil
	case "delta":
		r.cfg.Delta = true
		return nil
	case "world":
		_, def, _ := strings.Cut(rest, ":")
		return r.world(def)
	case "key":
		state := slices.Index([]string{"here", "coming", "gone"}, words[2])
		r.keys[words[1]] = stream.KeyState(state)
		if name, asked := r.wanted[words[1]]; asked {
			r.stream.KeysChanged([]string{name})
		}
		return nil
	case "wants":
		if got := slices.Sorted(maps.Keys(r.wanted)); !slices.Equal(got, words[1:]) {
			return fmt.Errorf("the stream asked for the keys of %v", got)
		}
		return nil
	case "wait":
		d, err := time.ParseDuration(rest)
		r.now = r.now.Add(d)
		return err
	case "head":
		if !r.stream.WantsHead() {
			return errors.New("the stream does not wait for the head")
		}
		if rest == "away" {
			r.stream.HeadAway()
		} else {
			r.stream.HeadIs(r.worlds[len(r.worlds)-1].Version)
		}
		return nil
	case "other":
		return r.stream.Request(r.now, stream.Request{TypeURL: words[1], Names: wire(words[2:])})
	case "absent":
		got, ok := r.stream.Next(r.now)
		if !ok || got.Unserved != words[1] || got.URL() != words[1] || !slices.Equal(got.Removed, words[2:]) || got.Nonce == "" {
			return fmt.Errorf("got %+v", got)
		}
		return r.stream.Request(r.now, stream.Request{TypeURL: words[1], Nonce: got.Nonce})
	case "held":
		if got := r.stream.Status().Lingering; got != len(words)-1 {
			return fmt.Errorf("%d clusters linger", got)
		}
		return nil
	case "applied":
		v, all := r.stream.Applied()
		got := fmt.Sprint(v.Seq)
		if all {
			got += " all"
		}
		if got != rest {
			return fmt.Errorf("the stream reports %s", got)
		}
		return nil
	case "event":
		defer func() { r.events = nil }()
		if !slices.Contains(r.events, rest) {
			return fmt.Errorf("observed %v", r.events)
		}
		return nil
	}
	return r.talk(words)
}

func (r *script) talk(words []string) error {
	if len(words) < 2 {
		return fmt.Errorf("no command %s", words[0])
	}
	t := typeOf(words[1])
	if t == ident.ResourceTypes {
		return fmt.Errorf("no type %s", words[1])
	}
	return r.talkOf(words[0], t, words[2:])
}

func (r *script) talkOf(verb string, t ident.ResourceType, args []string) error {
	switch verb {
	case "rejected":
		for _, x := range r.stream.Rejections() {
			if x.Type == t && x.Name == args[0] && x.Good != nil {
				if got := fmt.Sprintf("%s %d had %s", x.Name, x.World.Seq, r.text[x.Good.Sum]); got != strings.Join(args, " ") {
					return fmt.Errorf("the rejection is %s", got)
				}
				return nil
			}
		}
		return errors.New("there is no such rejection of a client that has another one")
	case "only":
		r.cfg.Only = &t
		return nil
	case "status":
		return r.status(t, strings.Join(args, " "))
	case "awaits":
		for _, st := range r.stream.Status().Types {
			if st.Type == t && slices.Equal(st.WaitsForKeys, args) {
				return nil
			}
		}
		return fmt.Errorf("it is %+v", r.stream.Status().Types)
	case "contents":
		return r.contents(t, strings.Join(args, " "))
	}
	req := stream.Request{TypeURL: t.URL(), Version: r.version[t]}
	subscription := r.names[t]
	back := 1
	if strings.HasSuffix(verb, "-late") || verb == "again" {
		back = 2
	}
	if v, which, is := strings.Cut(verb, "@"); is {
		n, err := strconv.Atoi(which)
		if err != nil {
			return err
		}
		verb, back = v, len(r.last[t])-n+1
	}
	var answered stream.Response
	if n := len(r.last[t]); !slices.Contains([]string{"ask", "get", "bare", "sub", "unsub"}, verb) {
		if back < 1 || n < back {
			return fmt.Errorf("only %d responses so far", n)
		}
		answered = r.last[t][n-back]
		req.Nonce = answered.Nonce
	}
	switch verb {
	case "get":
		got, ok := r.stream.Next(r.now)
		if !ok {
			return errors.New("the stream sends nothing")
		}
		r.last[got.Type] = append(r.last[got.Type], got)
		if want := strings.TrimSpace(t.String() + " " + strings.Join(args, " ")); r.print(got) != want {
			return fmt.Errorf("got %s", r.print(got))
		}
		return nil
	case "ask":
		subscription = r.ask(&req, t, args)
	case "ack", "ack-late", "sticky":
		req.Version = answered.Version
		r.version[t] = answered.Version
		if verb == "sticky" {
			req.Rejected, req.Error = true, strings.Join(args, " ")
		} else {
			subscription = rename(subscription, args)
		}
	case "nack", "nack-late":
		req.Rejected, req.Error = true, strings.Join(args, " ")
	case "again", "bare":
		subscription = rename(subscription, args)
	case "sub":
		subscription = args
	case "unsub":
		req.Unsubscribe = wire(args)
	default:
		return fmt.Errorf("no command %s", verb)
	}
	req.Names = wire(subscription)
	if r.cfg.Delta {
		req.Version = ""
	} else {
		r.names[t] = subscription
	}
	return r.stream.Request(r.now, req)
}

// wire returns names as received.
func wire(list []string) names.Wire {
	list = slices.Clone(list)
	for i := range list {
		list[i] = strings.Trim(list[i], "'")
	}
	return names.Of(list...)
}

func (r *script) status(t ident.ResourceType, want string) error {
	for _, st := range r.stream.Status().Types {
		got := "waits"
		if st.AckedAll {
			got = "acked"
		} else if st.SentAll {
			got = "sent"
		}
		if st.Type != t {
			continue
		}
		if got != want {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	}
	return fmt.Errorf("the client has not requested %s", t)
}

func (r *script) contents(t ident.ResourceType, want string) error {
	var got []string
	for _, c := range r.stream.Contents() {
		if c.GetTypeUrl() != t.URL() {
			continue
		}
		if c.GetWildcard() {
			got = append(got, "*")
		}
		for _, res := range c.GetResources() {
			var sum xds.Sum
			copy(sum[:], res.GetSum())
			id := r.text[sum]
			if id == "" {
				id = res.Name + "@0"
			}
			switch {
			case !res.Sent:
				id += ":due"
			case res.Applied:
				id += ":applied"
			default:
				id += ":sent"
			}
			if res.HeldBack {
				id += ":held-back"
			}
			if res.Lingering {
				id += ":lingering"
			}
			got = append(got, id)
		}
	}
	if len(got) == 0 {
		got = []string{"none"}
	}
	if s := strings.Join(got, " "); s != want {
		return fmt.Errorf("it is %s", s)
	}
	return nil
}

// rename returns the names of the next request: the given names, an empty list for
// "none", or the names of the previous request if none are given.
func rename(have, names []string) []string {
	switch {
	case slices.Equal(names, []string{"none"}):
		return nil
	case len(names) > 0:
		return names
	}
	return have
}

func (r *script) ask(req *stream.Request, t ident.ResourceType, args []string) (subscription []string) {
	if r.stream == nil {
		r.stream = stream.New(r.cfg, r.worlds[len(r.worlds)-1])
	}
	for _, a := range args {
		if has, is := strings.CutPrefix(a, "has="); is {
			name, content, _ := strings.Cut(has, "@")
			sum := xds.Absent(name)
			if content != "0" {
				sum = r.resource(t, has).Sum
			}
			req.Initial = req.Initial.With(name, sum.String())
			continue
		}
		version, is := strings.CutPrefix(a, "version=")
		if !is {
			subscription = append(subscription, a)
			continue
		}
		req.Version = version
		var n int
		if _, err := fmt.Sscanf(version, "%d", &n); err == nil {
			set := r.worlds[n-1].Sets[t]
			req.Initial = initial(set, subscription)
			if req.Version = set.Sum.String(); len(subscription) > 0 {
				req.Version = new(names.Table).InternList(slices.Clone(subscription)).SumIn(set).String()
			}
			if strings.HasSuffix(version, "!") {
				req.Version, req.Initial = strings.ToUpper(req.Version), marked(req.Initial)
			}
		}
	}
	r.version[t] = req.Version
	return subscription
}

// initial returns the versions that a delta client names if it has the subscribed
// resources of set.
func initial(set *xds.Set, subscription []string) names.Versions {
	var v names.Versions
	for _, res := range set.Resources {
		if len(subscription) == 0 || slices.Contains(subscription, "*") || slices.Contains(subscription, res.Name) {
			v = v.With(res.Name, res.Sum.String())
		}
	}
	return v
}

// marked returns versions as a stream without CDS sent them.
func marked(v names.Versions) (all names.Versions) {
	for name, version := range v.All() {
		all = all.With(string(name), strings.ToUpper(string(version)))
	}
	return all
}
