package failpoint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"
)

// TestPointsAreComplete checks that Points returns all constants.
func TestPointsAreComplete(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "points.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var constants []Point
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			name, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Error(err)
			}
			constants = append(constants, Point(name))
		}
		return true
	})
	if len(constants) == 0 || !slices.Equal(constants, Points()) {
		t.Errorf("the constants are\n%q, Points returns\n%q", constants, Points())
	}
}
