package web

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/explain"
	"meshlog.dev/services/operate/history"
)

// Limits of what a page finds out about the use of an object: classes of connected proxies, the
// largest first, resources that it names, and the size of a mesh above which the page waits to
// be asked.
const (
	usedClasses   = 16
	usedResources = 20
	usedUnasked   = 2000 // objects
)

// usedData says which proxies have resources that were made from an object.
type usedData struct {
	Ask     bool // the mesh is large: the page has a link instead
	Error   string
	Classes []usedClass
	Left    int // classes that were not looked at
}

type usedClass struct {
	Name    string
	Example string // a proxy of the class
	Streams int
	Uses    []usedType
}

type usedType struct {
	Type, Word string
	All        int
	Resources  []string // the first ones
}

// More is how many resources it does not name.
func (u usedType) More() int { return u.All - len(u.Resources) }

// Reads reports whether a proxy has such a resource.
func (u *usedData) Reads() bool {
	return slices.ContainsFunc(u.Classes, func(c usedClass) bool { return len(c.Uses) > 0 })
}

// used finds out which connected proxies have resources that were made from an object: one proxy
// of each class is looked at, because all proxies of a class have the same ones.
func used(ctx context.Context, p *page, c *history.Content, k ident.Key) *usedData {
	v := &usedData{Ask: len(c.Keys()) > usedUnasked && p.Param("used") == ""}
	if v.Ask {
		return v
	}
	v.classes(p)
	if v.Left = len(v.Classes) - usedClasses; v.Left > 0 {
		v.Classes = v.Classes[:usedClasses]
	} else {
		v.Left = 0
	}
	if err := v.find(ctx, p, c, k); err != nil {
		v.Classes, v.Error = nil, err.Error()
	}
	return v
}

// classes counts the connected proxies by class, the most first.
func (u *usedData) classes(p *page) {
	at := map[string]int{}
	for i := range p.Mesh.Proxies {
		x := &p.Mesh.Proxies[i]
		n, known := at[x.Group]
		if !known {
			n = len(u.Classes)
			at[x.Group] = n
			u.Classes = append(u.Classes, usedClass{Name: cmp.Or(x.Group, "-"), Example: x.ID})
		}
		u.Classes[n].Streams++
	}
	slices.SortFunc(u.Classes, func(a, b usedClass) int {
		return cmp.Or(cmp.Compare(b.Streams, a.Streams), strings.Compare(a.Name, b.Name))
	})
}

func (u *usedData) find(ctx context.Context, p *page, c *history.Content, k ident.Key) error {
	var proxies []*proxy.Proxy
	gone := func(x usedClass) bool { return x.Example == "" }
	for i := range u.Classes {
		q := command.ProxyQuery{ID: u.Classes[i].Example}
		of, err := q.Find(ctx, p.mesh.Target, p.mesh.Past)
		var coded interface{ ExitCode() int }
		switch {
		case errors.As(err, &coded) && coded.ExitCode() == 3:
			u.Classes[i].Example = "" // it has disconnected meanwhile
		case err != nil:
			return err
		default:
			proxies = append(proxies, of)
		}
	}
	u.Classes = slices.DeleteFunc(u.Classes, gone)
	uses, err := explain.UsedBy(c.Rows(), k, proxies)
	if err != nil {
		return err
	}
	for i := range u.Classes {
		for _, x := range uses {
			if x.Proxy == u.Classes[i].Example {
				u.Classes[i].Uses = append(u.Classes[i].Uses, usedType{x.Type, x.Word, len(x.Resources), x.Resources[:min(len(x.Resources), usedResources)]})
			}
		}
	}
	return nil
}
