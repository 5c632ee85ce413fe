package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"meshlog.dev/services/operate/command"
)

// sinkStream is the protocol of a client of MCP-over-xDS.
const sinkStream = "MCP"

func (v *ProxyView) isSink() bool { return v.Stream == sinkStream }

// splitSinks returns the streams of proxies, and those of clients of MCP-over-xDS.
func splitSinks(views []ProxyView) (proxies, sinks []ProxyView) {
	for _, v := range views {
		if v.isSink() {
			sinks = append(sinks, v)
		} else {
			proxies = append(proxies, v)
		}
	}
	return proxies, sinks
}

// sinkTable shows each client of MCP-over-xDS in a line, and the problems below the table.
func sinkTable(views []ProxyView, now time.Time, out *command.Output) {
	t := command.Rows{Head: []string{"SINK", "NAMESPACE", "REVISION", "FRONTEND", "VERSION", "BEHIND", "TYPES"}}
	for _, v := range views {
		behind := command.Cell{Text: v.Behind.String()}
		if v.Behind != nil {
			behind.Color = command.Yellow
		}
		t.Add(out.Cut(v.ID, 48), v.Namespace, cmp.Or(v.Group, "-"), out.Cut(v.Frontend, 24), v.Version, behind, v.counts())
	}
	out.Rows(&t)
	showProblems(views, now, out)
}

// counts says how many types are in which state: "2 NACK, 28 SYNCED".
func (v *ProxyView) counts() command.Cell {
	of := map[string]int{}
	for _, t := range v.Types {
		of[t.Status]++
	}
	cell := command.Cell{Color: command.Green}
	var parts []string
	for _, status := range []string{"NACK", "STALE", "NOT SENT", "SYNCED"} {
		if of[status] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", of[status], status))
		}
	}
	switch {
	case of["NACK"] > 0:
		cell.Color = command.Red
	case slices.ContainsFunc(v.Types, func(t typeView) bool { return t.Status != "SYNCED" }):
		cell.Color = command.Yellow
	}
	cell.Text = cmp.Or(strings.Join(parts, ", "), "none yet")
	return cell
}
