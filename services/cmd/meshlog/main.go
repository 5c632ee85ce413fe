// Meshlog runs the whole mesh control plane in one process (`meshlog up`), and
// looks into any that runs.
package main

import (
	"os"

	"meshlog.dev/services/internal/cli"
	"meshlog.dev/services/internal/process"
)

func main() { os.Exit(process.Main(cli.New())) }
