package file

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"meshlog.dev/services/mesh/manifest"
)

// someDocuments are documents of a file, good and bad ones. %d is a number that changes.
var someDocuments = []string{
	"---\napiVersion: meshlog.dev/v1\nkind: MeshPolicy\nmetadata: {name: default}\nspec: {domainSuffix: d%d.example}\n",
	"---\n# a service\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata:\n  name: s%d\nspec:\n  hosts: [s.example.com]\n  ports: [{number: 80, name: http, protocol: HTTP}]\n  resolution: DNS\n",
	"---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s%d}\nspec:\n  hosts: []\n",                 // invalid
	"---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: u%d}\nspec: {hosts: [a.b], hosts: [a.b]}\n", // its reason names a line
	"---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: u%d}\nspec: {egres: []}\n",
	"---\nkind: [%d\n",
	"---\napiVersion: v1\nkind: Gadget\nmetadata: {name: g%d}\n",
	"---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: meshlog.dev/v1, kind: MeshPolicy, metadata: {name: x%d}}\n- {}\n",
	"---\n# %d\n",
}

// TestReread edits a file at random. A watcher that knows the file before finds the same
// objects and problems, with the same lines, as one that reads the whole file.
func TestReread(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		before, docs := &content{}, []string{}
		for range 20 {
			one := fmt.Sprintf(someDocuments[r.IntN(len(someDocuments))], r.IntN(3))
			switch at := r.IntN(len(docs) + 1); {
			case at < len(docs) && r.IntN(3) == 0:
				docs[at] = one
			case at < len(docs) && r.IntN(3) == 0:
				docs = slices.Delete(docs, at, at+1)
			default:
				docs = slices.Insert(docs, at, one)
			}
			data := []byte(strings.Join(docs, ""))
			again, whole := parse("f.yaml", "", data, before), parse("f.yaml", "", data, &content{})
			if !reflect.DeepEqual(again, whole) {
				t.Fatalf("%s\nread again: %+v\nparsed whole: %+v", data, again, whole)
			}
			before = &again
		}
	}
}

// Documents with many aliases take from the allowance of their file in the order of the file,
// although documents are parsed side by side.
func TestAllowanceInOrder(t *testing.T) {
	var file bytes.Buffer
	for i := range 6 {
		fmt.Fprintf(&file, "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s%d}\nspec:\n  a: &a0 [%s]\n", i, strings.Repeat("xxxxxxxxxxxxxxxx, ", 20))
		for n := range 4 {
			fmt.Fprintf(&file, "  b%d: &a%d [%s]\n", n, n+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", n), 9), ", "))
		}
	}
	var want []string
	for _, d := range manifest.Parse(file.Bytes()) {
		want = append(want, fmt.Sprint(d.Metadata.Name, d.Err != nil))
	}
	if !slices.Contains(want, "s5true") || slices.Contains(want, "s0true") {
		t.Fatalf("the file takes too much or too little: %v", want)
	}
	shared := manifest.NewAllowance()
	var got []string
	for _, c := range manifest.Split(file.Bytes()) {
		docs, alone := c.Alone()
		if !alone {
			docs = c.Documents(shared)
		}
		for _, d := range docs {
			got = append(got, fmt.Sprint(d.Metadata.Name, d.Err != nil))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("alone first: %v, in order: %v", got, want)
	}
}
