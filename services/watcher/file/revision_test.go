package file_test

import (
	"testing"

	"meshlog.dev/services/watcher/file"
)

// REV-1: a watcher with a revision sees the objects of its revision and those of none.
// An object that gets another revision is gone.
func TestRevision(t *testing.T) {
	of := func(revision, name string) string {
		return "apiVersion: envoy.meshlog.dev/v1\nkind: Resource\nmetadata: {name: " + name + ", labels: {istio.io/rev: " + revision + "}}\n" +
			"spec: {nodes: {cluster: c}, resource: {\"@type\": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment, clusterName: x}}\n"
	}
	const brokenOfOther = "apiVersion: envoy.meshlog.dev/v1\nkind: Resource\nmetadata: {name: d, labels: {istio.io/rev: old}}\nspec: {nodse: 1}\n"
	dir := dirWith(t, "a.yaml", docs(of("new", "a"), of("old", "b"), policy("c", "x"), brokenOfOther))
	r := startWatcher(t, dir, file.New(dir).OfRevision("new"))
	r.want("list\n  Resource default/a a.yaml:1 \n  Resource default/c a.yaml:11 ")
	r.write("a.yaml", docs(of("old", "a"), of("new", "b"), policy("c", "x")))
	r.want("change\n  delete Resource default/a a.yaml:1\n  Resource default/b a.yaml:6 ")

	all := start(t, dir)
	all.want("list\n  Resource default/a a.yaml:1 \n  Resource default/b a.yaml:6 \n  Resource default/c a.yaml:11 ")
}
