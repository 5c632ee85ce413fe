package fleet

import (
	"bytes"
	"slices"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// A response is read wherever its frames end.
func TestResponseOfAnyFrames(t *testing.T) {
	var body []byte
	body = appendText(body, responseVersion, "v1")
	body = appendText(body, responseResources, bytes.Repeat([]byte("r"), 300))
	body = protowire.AppendTag(body, 3, protowire.VarintType) // canary
	body = protowire.AppendVarint(body, 1)
	body = appendText(body, responseType, RDS.URL())
	body = appendText(body, responseResources, "another")
	body = appendText(body, responseNonce, "n7")
	for frame := 1; frame <= len(body); frame += 7 {
		var data mem.BufferSlice
		for part := range slices.Chunk(body, frame) {
			data = append(data, mem.SliceBuffer(part))
		}
		r := response{keep: true}
		if err := (codec{}).Unmarshal(data, &r); err != nil {
			t.Fatalf("frames of %d: %v", frame, err)
		}
		if r.version != "v1" || r.typeURL != RDS.URL() || r.nonce != "n7" || r.size != len(body) || !bytes.Equal(r.body, body) {
			t.Fatalf("frames of %d: read %+v", frame, r)
		}
	}
	got, err := resources(body)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := each(got, func([]byte) error { n++; return nil }); err != nil || n != 2 {
		t.Errorf("%d resources (%v), want 2", n, err)
	}
}

func TestCutOffResponse(t *testing.T) {
	body := appendText(nil, responseVersion, "version")
	for n := 1; n < len(body); n++ {
		if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(body[:n])}, &response{}); err == nil {
			t.Errorf("the first %d of %d bytes are read without an error", n, len(body))
		}
	}
}

// said decodes a request into texts by field number.
func said(t *testing.T, r request) map[protowire.Number][]string {
	t.Helper()
	out := map[protowire.Number][]string{}
	for b := mem.BufferSlice(r).Materialize(); len(b) > 0; {
		field, _, n := protowire.ConsumeTag(b)
		value, m := protowire.ConsumeBytes(b[max(n, 0):])
		if n < 0 || m < 0 {
			t.Fatalf("not a request: %x", b)
		}
		out[field] = append(out[field], string(value))
		b = b[n+m:]
	}
	return out
}

func TestRequests(t *testing.T) {
	names := []string{"a", "b"}
	for m, want := range map[Mode]struct{ first, ack map[protowire.Number][]string }{
		SotW: {
			map[protowire.Number][]string{2: {"node"}, 3: names, 4: {EDS.URL()}},
			map[protowire.Number][]string{1: {"v"}, 3: names, 4: {EDS.URL()}, 5: {"n"}},
		},
		Delta: {
			map[protowire.Number][]string{1: {"node"}, 2: {EDS.URL()}, 3: names},
			map[protowire.Number][]string{2: {EDS.URL()}, 6: {"n"}},
		},
	} {
		p := phraseOf(m, EDS, names)
		equal := func(what string, r request, want map[protowire.Number][]string) {
			got := said(t, r)
			for field := range protowire.Number(10) {
				if !slices.Equal(got[field], want[field]) {
					t.Errorf("%s, %s: field %d is %q, want %q", m, what, field, got[field], want[field])
				}
			}
		}
		equal("first", p.first(m, []byte("node")), want.first)
		equal("ACK", p.acknowledge(m, "v", "n"), want.ack)
	}
}

func message(path []protowire.Number, value string) []byte {
	b := []byte(value)
	for _, field := range slices.Backward(path) {
		b = appendText(nil, field, b)
	}
	return b
}

func TestNames(t *testing.T) {
	cluster := func(name, service string, discovery uint64) []byte {
		b := appendText(nil, 1, name)
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), discovery)
		if service != "" {
			b = append(b, message(edsServiceName, service)...)
		}
		return b
	}
	listener := func(chains protowire.Number, filter, routes string) []byte {
		config := appendText(nil, 1, filter)
		config = appendText(config, 2, message(managerRoutes, routes))
		return message([]protowire.Number{chains, 3, 4}, string(config))
	}
	for m, wrap := range map[Mode]func([]byte) []byte{
		SotW:  func(b []byte) []byte { return message([]protowire.Number{2, 2}, string(b)) },
		Delta: func(b []byte) []byte { return message([]protowire.Number{2, 2, 2}, string(b)) },
	} {
		clusters := slices.Concat(wrap(cluster("plain", "", 3)), wrap(cluster("other", "named", 3)), wrap(cluster("static", "", 0)))
		if got, err := endpointNames(m, clusters); err != nil || !slices.Equal(got, []string{"named", "plain"}) {
			t.Errorf("%s: names of EDS are %q (%v)", m, got, err)
		}
		listeners := slices.Concat(wrap(listener(3, httpManager, "80")), wrap(listener(25, httpManager, "81")),
			wrap(listener(3, httpManager, "80")), wrap(listener(3, "type.googleapis.com/tcp", "no")))
		if got, err := routeNames(m, listeners); err != nil || !slices.Equal(got, []string{"80", "81"}) {
			t.Errorf("%s: names of RDS are %q (%v)", m, got, err)
		}
	}
}
