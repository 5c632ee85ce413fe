// Kustomize prints the objects that `kubectl apply -k DIRECTORY` would apply, in
// that order. It is a module of its own because kustomize has many dependencies.
package main

import (
	"fmt"
	"os"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kustomize:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want one directory, not %q", args)
	}
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy // as kubectl does
	all, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), args[0])
	if err != nil {
		return err
	}
	b, err := all.AsYaml()
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(b)
	return err
}
