package fold

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// A script is a log in words, one record a line:
//
//	epoch N BUILD                     a segment that begins epoch N; its base is EpochBase of the fold and the published head
//	build BUILD                       a segment of this epoch; its base is the content of the published head
//	begin SESSION
//	put SESSION PSEQ KEY=VALUE        options low=N batch=ID:INDEX/TOTAL origin=PLACE
//	del SESSION PSEQ KEY
//	alive SESSION KEY=VALUE...        with the digest of exactly these; options low=N, partial, nodigest, ends,
//	                                  listed=KEY,KEY (the buckets of these keys; by default all buckets),
//	                                  kinds=KIND,KIND (that the session covers; by default all kinds)
//	overlay ID KIND KEY:VALUE/BASE... the value served while the base is offered; - means no value
//	overlay ID rollback KEY:VALUE/BASE...
//	                                  options scope=config or scope=NAMESPACE, batch=ID:INDEX/TOTAL
//	freeze ID                         of the shard
//	rollout ID STATE STEP KEY:VALUE...
//	                                  options reached=NAMESPACE, ordered
//	overlay ID quarantine RESOURCE:VALUE
//	                                  the value served instead; - means no value
//	remove ID
//	junk                              a record that cannot be decoded
//	as SUBJECT LINE                   the record of a line, under a subject
//	foreign LINE                      the record of a line, as the server appends it when a client makes it reply to the log
//	by NAME LINE                      the record of a line, signed by an operator: ann (with a second key ann2), bob or eve;
//	                                  options read=SEQ (by default the record before), number=N, of=EPOCH, mesh=ID
//	again N                           the bytes of record N once more
//	steal N LINE                      the record of a line, with the signature of record N
//	publish [KEY=VALUE...]            no record: these values, or without any the fold's content, become the published head
//	seq N                             no record: the next record has this number
//
// Each takes shard=SOURCE/INSTANCE; the default is file/a. A KEY is the name of a
// Thing, or KIND/NAME; MeshPolicy/default takes the values of policies. testJudge decides which VALUEs are good.
type script struct {
	fold      *Fold
	seq       uint64
	published []kv
	head      ident.Position
	pending   *iter.Seq2[string, []byte]
	signed    map[uint64]events.Event // signed records
}

type kv struct {
	key   string
	value []byte
}

func collect(rows iter.Seq2[string, []byte]) []kv {
	var all []kv
	for k, v := range rows {
		all = append(all, kv{k, v})
	}
	return all
}

func contentRows(f *Fold) (all []kv) {
	for _, r := range f.Content().Rows {
		all = append(all, kv{r.Row, r.Value})
	}
	return all
}

func each(all []kv) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, r := range all {
			if !yield(r.key, r.value) {
				return
			}
		}
	}
}

// diffRows returns the difference, "" if there is none.
func diffRows(want, got []kv) string {
	same := slices.EqualFunc(want, got, func(a, b kv) bool { return a.key == b.key && bytes.Equal(a.value, b.value) })
	if same {
		return ""
	}
	return cmp.Diff(want, got, cmp.AllowUnexported(kv{}))
}

// testJudge judges a value by its prefix: "bad" is not good, "warn" is good with a
// warning, "onlyX" is good for build X only. A Wall fails closed.
type testJudge string

func (build testJudge) Judge(k ident.Key, v ident.Value) (proto.Message, []problem.Diagnostic, bool) {
	s := string(v.Bytes)
	switch {
	case strings.HasPrefix(s, "bad"), strings.HasPrefix(s, "only") && !strings.HasPrefix(s, "only"+string(build)):
		return nil, []problem.Diagnostic{{Severity: problem.Error, Code: "invalid", Field: "spec", Reason: s + " is invalid", Advice: "correct it"}}, false
	case strings.HasPrefix(s, "warn"):
		return nil, []problem.Diagnostic{{Severity: problem.Warning, Code: "invalid", Field: "spec", Reason: s + " is odd"}}, true
	}
	return nil, nil, true
}

func (testJudge) Closed(k ident.Key, v ident.Value) (ident.Value, bool) {
	if k.Kind != "Wall" {
		return ident.Value{}, false
	}
	return ident.Value{Type: ident.Closed, Bytes: append([]byte("closed-"), v.Bytes...)}, true
}

func (testJudge) Configures(kind string) bool { return kind != "Endpoint" }
func (testJudge) Stages(kind string) bool     { return kind != "Endpoint" && kind != "MeshPolicy" }

func (testJudge) EndpointsOnly(k ident.Key, _, _ *world.Object) bool { return k.Kind == "Endpoint" }

const testType = "type.googleapis.com/test.Value"

// policies are values of a MeshPolicy.
var policies = map[string]*configv1.MeshPolicy{
	"policy-things":    {SourceRules: []*configv1.SourceRule{{Source: "*", Kinds: []string{"Thing"}}}},
	"policy-endpoints": {SourceRules: []*configv1.SourceRule{{Source: "file", Kinds: []string{"Endpoint"}}}},
	"policy-roots":     {SourceRules: []*configv1.SourceRule{{Source: "*", Kinds: []string{"TrustBundle", "Jwks"}}}},
	"policy-other":     {SourceRules: []*configv1.SourceRule{{Source: "other"}}},
	"policy-ann":       {Operators: []*configv1.Operator{{Name: "ann", Keys: []string{signerText("ann"), signerText("ann2")}}}},
	"policy-both": {Operators: []*configv1.Operator{
		{Name: "ann", Keys: []string{signerText("ann")}}, {Name: "bob", Keys: []string{signerText("bob")}},
	}},
}

// policyText returns the name of a policy, or the bytes as text.
func policyText(b []byte) string {
	for name, p := range policies {
		if bytes.Equal(marshalPolicy(p), b) {
			return name
		}
	}
	return string(b)
}

func marshalPolicy(p *configv1.MeshPolicy) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		panic(err)
	}
	return b
}

func testPayload(value string) ident.Value {
	if p := policies[value]; p != nil {
		return ident.Value{Type: "type.googleapis.com/meshlog.config.v1.MeshPolicy", Bytes: marshalPolicy(p)}
	}
	return ident.Value{Type: testType, Bytes: []byte(value)}
}

func testKey(shard ident.Shard, word string) ident.Key {
	k := ident.Key{Source: shard.Source, Instance: shard.Instance, Kind: "Thing", Name: word}
	if kind, name, ok := strings.Cut(word, "/"); ok {
		k.Kind, k.Name = kind, name
	}
	return k
}

func testHash(k ident.Key, value string) ident.Hash {
	if value == "-" {
		return ident.Hash{}
	}
	return events.ContentHash(k, testPayload(value))
}

// words is a parsed line.
type words struct {
	verb    string
	args    []string
	options map[string]string
	shard   ident.Shard
}

func parseWords(line string) words {
	w := words{options: map[string]string{}, shard: ident.Shard{Source: "file", Instance: "a"}}
	for i, f := range strings.Fields(line) {
		name, value, _ := strings.Cut(f, "=")
		switch name {
		case "low", "batch", "origin", "partial", "nodigest", "listed", "kinds", "ends", "scope", "reached", "ordered", "read", "number", "of", "mesh":
			w.options[name] = value
		case "shard":
			w.shard.Source, w.shard.Instance, _ = strings.Cut(value, "/")
		default:
			if i == 0 {
				w.verb = f
			} else {
				w.args = append(w.args, f)
			}
		}
	}
	return w
}

func (w words) number(name string, otherwise uint64) uint64 {
	if v, ok := w.options[name]; ok {
		otherwise, _ = strconv.ParseUint(v, 10, 64)
	}
	return otherwise
}

// record returns the record of a line, or false if the line makes none.
func (s *script) record(line string) (events.Record, bool) {
	w := parseWords(line)
	switch w.verb {
	case "by", "again", "steal":
		return s.bySigned(w, line), true
	case "as", "foreign":
		return s.forged(w.verb, strings.TrimSpace(strings.TrimPrefix(line, w.verb))), true
	case "publish":
		s.published, s.head = contentRows(s.fold), s.fold.Position()
		if len(w.args) > 0 {
			s.published = w.content()
		}
		return events.Record{}, false
	case "seq":
		s.seq, _ = strconv.ParseUint(w.args[0], 10, 64)
		s.seq--
		return events.Record{}, false
	}
	s.seq++
	rec := events.Record{Seq: s.seq, Time: time.Unix(int64(s.seq), 0).UTC(), Hash: ident.Hash{byte(s.seq), byte(s.seq >> 8), 1}}
	rec.Event = events.Event{ID: fmt.Sprint("id", s.seq)}
	switch w.verb {
	case "epoch", "build":
		rec.Event.Body = s.segment(w)
	case "begin":
		rec.Event.Body = &events.Begin{Shard: w.shard, Session: w.args[0], Holder: "holder"}
	case "put", "del":
		rec.Event.Body = w.object()
	case "alive":
		rec.Event.Body = w.alive()
	case "overlay":
		rec.Event.Actor = "ann"
		rec.Event.Body = w.overlay()
	case "freeze":
		rec.Event.Actor = "ann"
		rec.Event.Body = &events.Overlay{ID: w.args[0], Kind: ident.Freeze, Reason: "a reason", Scope: &ident.Scope{Shard: w.shard}}
	case "pin":
		rec.Event.Actor = "ann"
		rec.Event.Body = w.pin()
	case "rollout":
		rec.Event.Actor = "builder"
		rec.Event.Body = w.rollout()
	case "remove":
		rec.Event.Body = &events.Overlay{ID: w.args[0], Remove: true}
	case "junk":
		rec.Event, rec.Err = events.Event{}, fmt.Errorf("decode event: not one")
	default:
		panic("no such line: " + line)
	}
	return rec, true
}

// forged returns the record of a line as another writer appends it.
func (s *script) forged(how, line string) events.Record {
	subject := ""
	if how == "as" {
		subject, line, _ = strings.Cut(line, " ")
	}
	rec, ok := s.record(line)
	if !ok {
		panic("not a record: " + line)
	}
	data, err := events.Encode(rec.Event)
	if err != nil {
		panic(err)
	}
	raw := events.Raw{Seq: rec.Seq, Time: rec.Time, Subject: events.Subject(subject), Data: data}
	if how == "foreign" {
		raw.Refused = "a server made it"
		raw.Subject, _ = events.SubjectOf(rec.Event)
	}
	forged := raw.Record()
	forged.Hash = rec.Hash
	return forged
}

// content returns the content rows of KEY=VALUE words.
func (w words) content() []kv {
	var rows []kv
	for _, arg := range w.args {
		word, value, _ := strings.Cut(arg, "=")
		k := testKey(w.shard, word)
		rows = append(rows, kv{k.Row(), world.MarshalValue(ident.Value{Type: testType, Bytes: []byte(value)})})
	}
	return rows
}

func (s *script) segment(w words) *events.Segment {
	g := &events.Segment{Head: s.head}
	base := iter.Seq2[string, []byte](nil)
	if w.verb == "epoch" {
		g.Epoch, _ = strconv.ParseUint(w.args[0], 10, 64)
		g.Build = w.args[1]
		if s.fold.Position().Epoch > 0 || s.published != nil {
			base, _ = s.fold.EpochBase(s.head, each(s.published))
		}
	} else {
		g.Epoch, g.EpochRecord, g.Build = s.fold.Segment().Epoch, s.fold.Segment().EpochRecord, w.args[0]
		base, _ = BuildBase(each(s.published))
	}
	if base != nil {
		base = each(collect(base))
		g.Base = ident.Hash{1}
		s.pending = &base
	}
	return g
}

func (w words) object() *events.Object {
	pseq, _ := strconv.ParseUint(w.args[1], 10, 64)
	word, value, _ := strings.Cut(w.args[2], "=")
	o := &events.Object{
		Key: testKey(w.shard, word), Op: events.Delete, Session: w.args[0], Pseq: pseq,
		Low: w.number("low", 1), Origin: w.options["origin"],
	}
	if w.verb == "put" {
		o.Op, o.Value = events.Put, testPayload(value)
	}
	o.Batch = w.batch()
	return o
}

func (w words) batch() (b events.Batch) {
	if text, ok := w.options["batch"]; ok {
		b.ID, text, _ = strings.Cut(text, ":")
		if _, err := fmt.Sscanf(text, "%d/%d", &b.Index, &b.Total); err != nil {
			panic(err)
		}
	}
	return b
}

func (w words) alive() *events.Alive {
	a := &events.Alive{Shard: w.shard, Session: w.args[0], Low: w.number("low", 1), Listed: events.AllBuckets()}
	_, a.Partial = w.options["partial"]
	var digests events.ShardDigests
	for _, arg := range w.args[1:] {
		word, value, _ := strings.Cut(arg, "=")
		k := testKey(w.shard, word)
		digests.Toggle(k, testHash(k, value))
	}
	if _, no := w.options["nodigest"]; !no {
		a.Digest = digests.Sum()
	}
	_, a.Ends = w.options["ends"]
	a.Kinds = events.KindsOf(list(w.options["kinds"])...)
	if listed, ok := w.options["listed"]; ok {
		a.Listed = events.BucketSet{}
		for _, word := range list(listed) {
			a.Listed.Add(events.Bucket(testKey(w.shard, word)))
		}
	}
	return a
}

func list(words string) []string {
	return strings.FieldsFunc(words, func(r rune) bool { return r == ',' })
}

// base returns the base that a segment needs, nil for other records.
func (s *script) base(rec events.Record) iter.Seq2[string, []byte] {
	if _, needs := s.fold.NeedsBase(rec); !needs {
		return nil
	}
	return *s.pending
}

// run feeds a script to a fold and returns what the fold did. If again is not nil,
// run calls it with each record before the fold applies it.
func run(t *testing.T, f *Fold, lines string, again func(*Fold, events.Record, iter.Seq2[string, []byte])) string {
	t.Helper()
	s := &script{fold: f}
	var out strings.Builder
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			fmt.Fprintln(&out, line)
			continue
		}
		rec, ok := s.record(line)
		if !ok {
			fmt.Fprintln(&out, line)
			continue
		}
		base := s.base(rec)
		if again != nil {
			again(f, rec, base)
		}
		change, problems, err := f.Apply(rec, base)
		fmt.Fprintf(&out, "%d %s\n", rec.Seq, line)
		writeChange(&out, change, problems, err)
	}
	return out.String() + writeState(f)
}

func writeChange(out *strings.Builder, c world.Change, problems []problem.Diagnostic, err error) {
	if err != nil {
		fmt.Fprintf(out, "    error: %v\n", err)
	}
	if c.Reset {
		fmt.Fprintf(out, "    all there is:\n")
	}
	if c.EndpointsOnly {
		fmt.Fprintf(out, "    endpoints only:\n")
	}
	for _, r := range c.Rows {
		fmt.Fprintf(out, "    %s = %s (%d)\n", r.Row, textOf(r.Row, r.Value), r.Seq)
	}
	for _, d := range problems {
		fmt.Fprintf(out, "    %s\n", diagnosticText(d))
	}
}

func textOf(row string, b []byte) string {
	if b == nil {
		return "gone"
	}
	if _, id, _ := ident.ParseRow(row); id != "" {
		o, err := world.UnmarshalOverlay(id, b)
		if err != nil {
			return err.Error()
		}
		var values []string
		for _, v := range o.Values {
			value := "-"
			if v.Value != nil {
				value = policyText(v.Value.Bytes)
			}
			name := v.Key.Name
			if v.Resource != nil {
				name = v.Resource.Name
			}
			values = append(values, name+":"+value)
		}
		if o.Scope != nil {
			values = slices.Insert(values, 0, "("+o.Scope.String()+")")
		}
		if r := o.Rollout; r != nil {
			values = slices.Insert(values, 0, fmt.Sprintf("(%s at %d for %s)", r.State, r.Step, r.Reached))
		}
		if o.Proxies != nil {
			values = slices.Insert(values, 0, "("+o.Proxies.String()+")")
		}
		return fmt.Sprintf("%s by %s: %s", map[ident.OverlayKind]string{1: "rollback", 2: "hold", 3: "quarantine", 4: "freeze", 5: "pin", 6: "rollout"}[o.Kind], o.Actor, strings.Join(values, " "))
	}
	v, err := world.UnmarshalValue(b)
	if err != nil {
		return err.Error()
	}
	return policyText(v.Bytes)
}

func diagnosticText(d problem.Diagnostic) string {
	var parts []string
	for _, s := range []string{d.Severity.String() + " " + d.Code, d.Origin, d.Field, d.Reason, d.Advice, d.Effect} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	if d.Key != (ident.Key{}) {
		parts = slices.Insert(parts, 1, d.Key.String())
	}
	return strings.Join(parts, "; ")
}

func writeState(f *Fold) string {
	var out strings.Builder
	fmt.Fprintf(&out, "\nat %s", f.Position())
	if !f.Mine() {
		fmt.Fprint(&out, ", not mine")
	}
	c := f.Counts()
	fmt.Fprintf(&out, ", %d keys", c.Keys)
	for _, n := range []struct {
		n    uint64
		what string
	}{{c.Strangers, "strangers"}, {c.Undecoded, "undecoded"}, {c.Refused, "refused"}} {
		if n.n > 0 {
			fmt.Fprintf(&out, ", %d %s", n.n, n.what)
		}
	}
	fmt.Fprintln(&out)
	for _, r := range f.Content().Rows {
		fmt.Fprintf(&out, "%s = %s\n", r.Row, textOf(r.Row, r.Value))
	}
	for _, d := range f.Diagnostics() {
		fmt.Fprintln(&out, diagnosticText(d))
	}
	for _, n := range f.Needs() {
		fmt.Fprintf(&out, "needs %s: %s\n", n.Shard, n.Reason)
	}
	var policy world.Policy
	for _, m := range f.Watermark() {
		fmt.Fprintf(&out, "shard %s/%s: last %d, synced %v, partial %v\n", m.GetSource(), m.GetInstance(), m.GetSeq(), m.GetSynced(), m.GetPartial())
		policy.Required = append(policy.Required, world.RequiredSource{Shard: ident.Shard{Source: m.GetSource(), Instance: m.GetInstance()}})
	}
	for _, sh := range f.Shards() {
		for _, k := range sh.Frozen {
			fmt.Fprintf(&out, "shard %s: frozen %d of %s\n", sh.Shard, k.Keys, k.Kind)
		}
	}
	for _, w := range f.Waiting(policy) {
		fmt.Fprintf(&out, "waiting: %s\n", w)
	}
	return out.String()
}

// table holds rows as a store would.
type table map[string][]byte

func (t table) rows() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, k := range slices.Sorted(maps.Keys(t)) {
			if !yield(k, t[k]) {
				return
			}
		}
	}
}

func (t table) apply(c Checkpoint) {
	if c.Reset {
		clear(t)
	}
	for _, r := range c.Put {
		t[r.Key] = r.Value
	}
	for _, k := range c.Remove {
		delete(t, k)
	}
}
