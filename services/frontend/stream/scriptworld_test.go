package stream_test

import (
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/piece"
)

// The worlds and resources of scripts, and how responses are printed.

// typeOf returns the type with a short name; ResourceTypes: there is none.
func typeOf(name string) ident.ResourceType {
	for t := range ident.ResourceTypes {
		if strings.EqualFold(t.String(), name) {
			return t
		}
	}
	return ident.ResourceTypes
}

// world parses a view and makes the stream serve it.
func (r *script) world(def string) error {
	n := uint64(len(r.worlds))
	v := content.View{Version: ident.Position{Epoch: 1, Seq: n + 1}, Until: ident.Position{Epoch: 1, Seq: n}}
	for t := range ident.ResourceTypes {
		v.Sets[t] = &xds.Set{}
	}
	for part := range strings.SplitSeq(def, ";") {
		words := strings.Fields(part)
		if len(words) == 0 {
			continue
		}
		t := typeOf(words[0])
		set := v.Sets[t]
		for _, w := range words[1:] {
			if name, out := strings.CutPrefix(w, "-"); out {
				v.Quarantined[t] = append(v.Quarantined[t], name)
				continue
			}
			res := r.resource(t, w)
			set.Resources = append(set.Resources, res)
			set.Sum = set.Sum.Add(res.Sum)
		}
		slices.SortFunc(set.Resources, func(a, b *xds.Resource) int { return strings.Compare(a.Name, b.Name) })
		if n := len(r.worlds); n > 0 && r.worlds[n-1].Sets[t].Sum == set.Sum {
			v.Sets[t] = r.worlds[n-1].Sets[t] // as the cache does
		}
	}
	r.worlds = append(r.worlds, v)
	if r.stream != nil {
		r.stream.Update(r.now, v)
	}
	return nil
}

func (r *script) resource(t ident.ResourceType, word string) *xds.Resource {
	word, secrets, _ := strings.Cut(word, "^")
	id, clusters, _ := strings.Cut(word, ">")
	id, how, _ := strings.Cut(id, "!")
	name, _, _ := strings.Cut(id, "@")
	res := &xds.Resource{Name: name, Sum: xds.Absent(t.String() + id)}
	r.text[res.Sum] = id
	var facts piece.Facts
	if clusters != "" {
		facts.Clusters = strings.Split(clusters, ",")
		slices.Sort(facts.Clusters)
	}
	if secrets != "" {
		facts.Secrets = strings.Split(secrets, ",")
	}
	if t == ident.CDS {
		switch how {
		case "dns":
			facts.SlowWarm = true
		case "sds":
			facts.SlowWarm, facts.Secrets, facts.Endpoints = true, append(facts.Secrets, "default"), name
		case "":
			facts.Endpoints = name
		}
	}
	if t == ident.SDS && how == "key" {
		facts.Key = &piece.Key{Sum: id}
	}
	res.Pieces = xds.PiecesOf(&xds.Encoded{Facts: facts})
	if how == "big" {
		res.Head = make([]byte, 1_500_000)
	}
	return res
}

func (r *script) print(resp stream.Response) string {
	words := []string{resp.Type.String()}
	for _, res := range resp.Resources {
		id, ok := r.text[res.Sum]
		if !ok {
			id = res.Name + "@0"
		}
		if res.Key() != nil {
			id += " without its key"
		}
		words = append(words, id)
	}
	for _, name := range resp.Removed {
		words = append(words, "-"+name)
	}
	return strings.Join(words, " ")
}
