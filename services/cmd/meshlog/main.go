// Meshlog runs the whole mesh control plane in one process (`meshlog up`), and
// looks into any that runs.
package main

import (
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/cli"
	"os"
)

func main() { os.Exit(process.Main(cli.New())) }
