package frontend

import (
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/proxy"
)

// Limits of what a client says about itself and of what it says about responses.
// A text that decides what the client is served must not be cut, so a longer one
// is refused. The others are only shown, so they are cut.
const (
	maxMetadata   = 64 << 10 // bytes of node.metadata on the wire
	maxIdentifier = 1 << 10  // node.id, node.cluster, and texts of metadata that are read by name
	maxLocality   = 4 << 10
	maxDepth      = 100      // of metadata
	maxClientText = 256      // user agents, versions, nonces, type URLs; cut
	maxRejection  = 16 << 10 // the message of a NACK; cut
	maxName       = 4 << 10  // of a resource
	checkedNames  = 64 << 10 // requests with fewer bytes of names have no name that takes many streams' memory
	costOfValue   = 192      // bytes in memory of a value of metadata, besides its texts
	metadataShare = 32 << 10 // of an address, for each stream that it may have
	replacement   = "\uFFFD" // for what is not UTF-8
)

// clean returns b as valid UTF-8, cut to a size. Invalid text would make every
// report that has it impossible to encode.
func clean(b []byte, most int) string {
	cut := len(b) > most
	if cut {
		b = b[:most]
	}
	if !cut && utf8.Valid(b) {
		return string(b)
	}
	if cut {
		b = wholeRunes(b)
	}
	return strings.ToValidUTF8(string(b), replacement)
}

// wholeRunes returns b without a character that was cut at its end.
func wholeRunes(b []byte) []byte {
	for i := len(b) - 1; i >= 0 && i > len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
		}
	}
	return b
}

// Fields of a Node. The others are not decoded. Envoy lists all of its extensions, 55 KB, of
// which only one counts.
const (
	nodeID, nodeCluster, nodeMetadata, nodeLocality = 1, 2, 3, 4

	nodeUserAgent, nodeUserAgentVersion, nodeUserAgentBuild, nodeExtensions = 6, 7, 8, 9

	extensionName = 1
)

// readNode reads the node of a first request. Proxies with equal metadata share
// it. The caller releases the metadata of the proxy when the stream has ended.
func readNode(b []byte, all *metadataTable, of *holder) (*proxy.Proxy, *metadata, error) {
	if b == nil {
		p, err := proxy.New(nil)
		return p, nil, err
	}
	node := new(corev3.Node)
	var raw []byte // of the metadata
	for len(b) > 0 {
		field, value, n := names.Field(b)
		if n < 0 {
			return nil, nil, fmt.Errorf("node is no protobuf message: %w", protowire.ParseError(n))
		}
		b = b[n:]
		if value == nil {
			continue
		}
		var err error
		switch field {
		case nodeID:
			node.Id, err = identifier("node.id", value)
		case nodeCluster:
			node.Cluster, err = identifier("node.cluster", value)
		case nodeMetadata:
			if len(raw)+len(value) > maxMetadata {
				err = fmt.Errorf("node.metadata has more than %d KiB: give this proxy less metadata", maxMetadata>>10)
			}
			if raw == nil {
				raw = value[:len(value):len(value)]
			} else {
				raw = append(raw, value...) // a message in several fields is merged
			}
		case nodeLocality:
			if len(value) > maxLocality {
				err = fmt.Errorf("node.locality has more than %d KiB", maxLocality>>10)
				break
			}
			node.Locality = new(corev3.Locality)
			err = unmarshal(value, node.Locality)
		case nodeUserAgent:
			node.UserAgentName = clean(value, maxClientText)
		case nodeUserAgentVersion:
			node.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: clean(value, maxClientText)}
		case nodeUserAgentBuild:
			build := new(corev3.BuildVersion)
			if len(value) <= maxMetadata && unmarshal(value, build) == nil {
				node.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{Version: build.GetVersion()}}
			}
		}
		if field == nodeExtensions {
			each(value, extensionName, func(name []byte) {
				if of := (&corev3.Extension{Name: string(name)}); len(node.GetExtensions()) == 0 || of.GetName() == proxy.MTLSAuthenticated {
					node.Extensions = []*corev3.Extension{of}
				}
			})
		}
		if err != nil {
			return nil, nil, err
		}
	}
	m, err := all.take(raw, of)
	if err != nil {
		return nil, nil, err
	}
	node.Metadata = m.values()
	p, err := proxy.New(node)
	for _, text := range []string{"NAMESPACE", "CLUSTER_ID", "DNS_DOMAIN", "NETWORK", "SERVICE_ACCOUNT"} {
		if err == nil {
			_, err = identifier("node.metadata."+text, []byte(p.Text(text)))
		}
	}
	if err != nil {
		all.release(m)
		return nil, nil, err
	}
	return p, m, nil
}

func identifier(field string, b []byte) (string, error) {
	switch {
	case len(b) > maxIdentifier:
		return "", fmt.Errorf("%s has %d bytes, the limit is %d", field, len(b), maxIdentifier)
	case !utf8.Valid(b):
		return "", fmt.Errorf("%s is not valid UTF-8", field)
	}
	return string(b), nil
}

func unmarshal(b []byte, m proto.Message) error {
	return proto.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: maxDepth}.Unmarshal(b, m)
}

// metadata is the metadata of proxies that sent the same bytes.
type metadata struct {
	key    [2]uint64
	fields *structpb.Struct
	// guarded by metadataTable.mu
	users  int
	cost   int
	holder *holder // the address that sent it first, which pays for it
}

func (m *metadata) values() *structpb.Struct {
	if m == nil {
		return nil
	}
	return m.fields
}

// metadataTable keeps equal metadata of all streams once. Some bytes of metadata
// take fifty times as much memory when they are decoded. So an address may have
// only as much metadata as its streams may take on average. It is safe for
// concurrent use.
type metadataTable struct {
	seeds [2]maphash.Seed

	mu    sync.Mutex
	all   map[[2]uint64]*metadata
	bytes int // cost of all
}

// size returns the memory that all metadata takes.
func (t *metadataTable) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes
}

func newMetadataTable() *metadataTable {
	return &metadataTable{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, all: make(map[[2]uint64]*metadata)}
}

// take decodes metadata, or finds it. Release it. nil: there is none.
func (t *metadataTable) take(raw []byte, of *holder) (*metadata, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	key := [2]uint64{maphash.Bytes(t.seeds[0], raw), maphash.Bytes(t.seeds[1], raw)}
	if m := t.find(key); m != nil {
		return m, nil
	}
	cost := len(raw) + costOfValue*valuesOf(raw)
	if !of.addMetadata(cost) {
		return nil, &limitError{"metadata", status.Errorf(codes.Unavailable,
			"the proxies behind this address have too much metadata in all, %d KiB for each stream that the address may have: give the proxies less metadata, or raise --streams-per-address",
			metadataShare>>10)}
	}
	m := &metadata{key: key, fields: new(structpb.Struct), users: 1, cost: cost, holder: of}
	if err := unmarshal(raw, m.fields); err != nil {
		of.addMetadata(-cost)
		return nil, fmt.Errorf("node.metadata cannot be read: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if first := t.all[key]; first != nil { // another stream was faster
		of.addMetadata(-cost)
		first.users++
		return first, nil
	}
	t.all[key] = m
	t.bytes += cost
	return m, nil
}

func (t *metadataTable) find(key [2]uint64) *metadata {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.all[key]
	if m != nil {
		m.users++
	}
	return m
}

// release ends a use of m, which may be nil.
func (t *metadataTable) release(m *metadata) {
	if m == nil {
		return
	}
	t.mu.Lock()
	m.users--
	last := m.users == 0
	if last {
		delete(t.all, m.key)
		t.bytes -= m.cost
	}
	t.mu.Unlock()
	if last {
		m.holder.addMetadata(-m.cost)
	}
}

// Fields of a Struct, of an entry of its map, of a Value and of a ListValue.
const (
	structEntries, entryValue        = 1, 2
	valueStruct, valueList, listItem = 5, 6, 1
)

// valuesOf returns the number of values in an encoded Struct without decoding it.
func valuesOf(encoded []byte) (n int) {
	each(encoded, structEntries, func(entry []byte) {
		each(entry, entryValue, func(value []byte) { n += valuesIn(value, maxDepth) })
	})
	return n
}

// valuesIn returns the number of values in an encoded Value, itself included. What
// is nested deeper than depth is not decoded either.
func valuesIn(value []byte, depth int) int {
	n := 1
	if depth == 0 {
		return n
	}
	each(value, valueStruct, func(b []byte) {
		each(b, structEntries, func(entry []byte) {
			each(entry, entryValue, func(v []byte) { n += valuesIn(v, depth-1) })
		})
	})
	each(value, valueList, func(b []byte) {
		each(b, listItem, func(v []byte) { n += valuesIn(v, depth-1) })
	})
	return n
}

// each calls f with every occurrence of a field of an encoded message.
func each(b []byte, field protowire.Number, f func([]byte)) {
	for len(b) > 0 {
		number, value, n := names.Field(b)
		if n < 0 {
			return // decoding will fail, too
		}
		if number == field && value != nil {
			f(value)
		}
		b = b[n:]
	}
}
