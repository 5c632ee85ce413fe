// Promql prints the metrics and labels that PromQL expressions use. It reads a
// JSON list of expressions from standard input and prints a list of results in
// the same order. It is a module of its own because Prometheus' parser has many
// dependencies.
package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// Found is the result for one expression.
type Found struct {
	// Error is the reason why the expression is not valid; empty: it is valid.
	Error string `json:"error,omitempty"`
	// Metrics are the names of its metrics, with the labels that the expression
	// uses of each: in its selector, or in the operations on it.
	Metrics map[string][]string `json:"metrics,omitempty"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "promql:", err)
		os.Exit(1)
	}
}

func run() error {
	var expressions []string
	if err := json.NewDecoder(os.Stdin).Decode(&expressions); err != nil {
		return fmt.Errorf("want a JSON list of expressions: %w", err)
	}
	found := []Found{}
	for _, e := range expressions {
		found = append(found, look(e))
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func look(expression string) Found {
	root, err := parser.ParseExpr(expression)
	if err != nil {
		return Found{Error: err.Error()}
	}
	metrics := map[string]map[string]bool{}
	parser.Inspect(root, func(n parser.Node, path []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		of := metrics[s.Name]
		if of == nil {
			of = map[string]bool{}
			metrics[s.Name] = of
		}
		for _, m := range s.LabelMatchers {
			if m.Name != labels.MetricName {
				of[m.Name] = true
			}
		}
		for _, above := range path {
			for _, l := range askedBy(above) {
				of[l] = true
			}
		}
		return nil
	})
	f := Found{Metrics: map[string][]string{}}
	for name, of := range metrics {
		f.Metrics[name] = slices.Sorted(maps.Keys(of))
	}
	return f
}

// askedBy returns the labels that a step of an expression uses of its operands.
func askedBy(n parser.Node) []string {
	switch n := n.(type) {
	case *parser.AggregateExpr:
		return n.Grouping
	case *parser.BinaryExpr:
		if n.VectorMatching != nil && n.VectorMatching.On {
			return n.VectorMatching.MatchingLabels
		}
	}
	return nil
}
