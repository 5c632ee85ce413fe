// Points prints the steps at which a process can be killed, one per line.
package main

import (
	"fmt"
	"os"

	"meshlog.dev/services/internal/failpoint"
)

func main() {
	for _, p := range failpoint.Points() {
		fmt.Fprintln(os.Stdout, p)
	}
}
