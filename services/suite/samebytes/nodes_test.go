package samebytes

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// defaultAgent is the user agent of a node that names none.
const defaultAgent = "envoy/1.40.0"

// node is a line of a .nodes file.
type node struct {
	name string
	node *corev3.Node
	// names are the Listeners that the node subscribes to; nil for all resources.
	names []string
}

func readNodes(t *testing.T, path string) []node {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := parseNodes(string(text))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return nodes
}

func parseNodes(text string) ([]node, error) {
	var nodes []node
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		n, err := parseNode(line)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
		if seen[n.name] {
			return nil, fmt.Errorf("%s: another node has that name", n.name)
		}
		seen[n.name] = true
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func parseNode(line string) (node, error) {
	words := splitWords(line)
	name, ok := strings.CutSuffix(words[0], ":")
	if !ok || len(words) < 2 {
		return node{}, fmt.Errorf("want NAME: NODE-ID [LABEL=VALUE ...]")
	}
	n := node{name: name, node: &corev3.Node{Id: words[1]}}
	labels, metadata, agent := map[string]any{}, map[string]any{}, defaultAgent
	for _, word := range words[2:] {
		key, value, ok := strings.Cut(word, "=")
		if !ok {
			return node{}, fmt.Errorf("%s: want KEY=VALUE", word)
		}
		if strings.HasPrefix(value, `"`) {
			var err error
			if value, err = strconv.Unquote(value); err != nil {
				return node{}, fmt.Errorf("%s: %w", word, err)
			}
		}
		field, isField := strings.CutPrefix(key, "%")
		data, isMetadata := strings.CutPrefix(key, "@")
		switch {
		case isMetadata && (strings.HasPrefix(value, "{") || strings.HasPrefix(value, "[")):
			var v any
			if err := json.Unmarshal([]byte(value), &v); err != nil {
				return node{}, fmt.Errorf("%s: %w", word, err)
			}
			metadata[data] = v
		case isMetadata:
			metadata[data] = value
		case !isField:
			labels[key] = value
		case field == "agent":
			agent = value
		case field == "cluster":
			n.node.Cluster = value
		case field == "names":
			n.names = strings.Split(value, ",")
		case field == "locality":
			parts := append(strings.Split(value, "/"), "", "")
			n.node.Locality = &corev3.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
		default:
			return node{}, fmt.Errorf("%s: no such field", word)
		}
	}
	if len(labels) > 0 {
		metadata["LABELS"] = labels
	}
	var version string
	n.node.UserAgentName, version, _ = strings.Cut(agent, "/")
	if version != "" {
		n.node.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: version}
	}
	var err error
	n.node.Metadata, err = structpb.NewStruct(metadata)
	return n, err
}

// splitWords splits at spaces outside of double quotes.
func splitWords(line string) []string {
	var words []string
	quoted, start := false, -1
	for i, c := range line {
		switch {
		case c == '"':
			quoted = !quoted
		case c == ' ' && !quoted:
			if start >= 0 {
				words = append(words, line[start:i])
			}
			start = -1
			continue
		}
		if start < 0 {
			start = i
		}
	}
	if start >= 0 {
		words = append(words, line[start:])
	}
	return words
}
